"""The real SGLang on the machine's GPU under ``governor up``. The scenarios are those of the CPU's engine."""

from __future__ import annotations

import pytest

from tests.gpu.card import Card
from tests.launched import (
    Launch,
    assert_a_chat_returns_from_l1,
    assert_a_killed_worker_is_seen,
    assert_each_tier_serves,
    assert_it_serves_again,
    assert_the_plan_meets_the_pool,
)
from tests.up import Up

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def test_a_chat_returns_from_l1(governor: Up) -> None:
    await assert_a_chat_returns_from_l1(governor)


async def test_the_plan_meets_the_pool(governor: Up, launch: Launch, card: Card) -> None:
    await assert_the_plan_meets_the_pool(governor, launch, card.weights)


async def test_each_tier_serves(governor: Up, launch: Launch) -> None:
    await assert_each_tier_serves(governor, launch, quick=False)


async def test_a_killed_worker_is_seen_and_the_next_start_is_clean(governor: Up, launch: Launch) -> None:
    await assert_a_killed_worker_is_seen(governor)
    await assert_it_serves_again(governor, launch)

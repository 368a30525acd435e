"""Guaranteed floors against what a real engine's surface reports: the twin with a pool of 8,192 tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from governor.budget.floors import overdrawn
from governor.errors import ConfigError
from governor.types import AgentName
from tests.harness import governed
from tests.twin_server import small_machine, twin_server

FLOOR = "[share]\nfloor_tokens = {}\n"


def test_floors_that_fit_or_cannot_be_judged_are_kept() -> None:
    assert overdrawn({AgentName("a"): 4_000, AgentName("b"): 4_192}, 8_192) is None
    assert overdrawn({AgentName("a"): 10**9}, None) is None


async def test_floors_over_the_capacity_end_the_start_with_the_arithmetic(tmp_path: Path) -> None:
    async with twin_server(small_machine()) as twin:
        with pytest.raises(ConfigError) as caught:
            await _run_until_told(twin.url, tmp_path)
    assert "5,000 (alice) + 4,000 (bob) = 9,000 KV tokens, 808 more than the engine's 8,192" in str(caught.value)
    assert caught.value.key == "share.floor_tokens"


async def test_an_edit_that_promises_too_much_is_told_and_changes_nothing(tmp_path: Path) -> None:
    async with (
        twin_server(small_machine()) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": FLOOR.format(2_000)}) as gov,
    ):
        (gov.home.policies / "alice.toml").write_text(FLOOR.format(9_000))
        async with asyncio.timeout(10):
            while "floors" not in gov.governor.watch.alerts:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert "9,000 (alice)" in gov.governor.watch.alerts["floors"]
        model = gov.governor.watch.models[0].id
        answer = await gov.chat(model=model, messages=[{"role": "user", "content": "hi"}])
        assert answer.status_code == 200
        (gov.home.policies / "alice.toml").write_text(FLOOR.format(1_000))
        async with asyncio.timeout(10):
            while gov.governor.watch.alerts:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def _run_until_told(url: str, root: Path) -> None:
    policies = {"alice": FLOOR.format(5_000), "bob": FLOOR.format(4_000)}
    async with governed(url, root, engine_kind="sglang", policies=policies, agents=("alice", "bob")) as gov:
        async with asyncio.timeout(10):
            while not gov.governor.watch.alerts:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

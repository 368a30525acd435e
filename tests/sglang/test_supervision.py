"""The real SGLang under ``governor up``: what must hold of any that it launches, the governor killed, and nobody left
behind.

One start of the engine, since each costs 20 CPU seconds: the second one is cut short.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from governor.settings import Home
from serve.process_table import ProcessTable
from serve.scripted import ScriptedEngine
from serve.sglang_launcher import WORKER_TITLE
from tests.launched import (
    Launch,
    assert_a_chat_returns_from_l1,
    assert_a_killed_worker_is_seen,
    assert_each_tier_serves,
    assert_the_plan_meets_the_pool,
    engine_record,
    launched,
)
from tests.sglang.engine import ENGINES, PROFILE, installed_engine
from tests.up import living, up

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

LAUNCH = Launch(profile=PROFILE, environment={"GOVERNOR_ENGINES": str(ENGINES)}, ready_s=600)


async def test_it_serves_from_each_tier_and_leaves_nothing_when_killed(tmp_path: Path) -> None:
    engine = await asyncio.to_thread(installed_engine)
    home, table = Home(tmp_path / "home"), ProcessTable()
    async with launched(LAUNCH, home) as governor:
        await assert_a_chat_returns_from_l1(governor)
        await assert_the_plan_meets_the_pool(governor, LAUNCH, str(engine.model_path))
        await assert_each_tier_serves(governor, LAUNCH, quick=True)
        # Scheduler and detokenizer, found by what they call themselves.
        assert len(table.titled(engine_record(home), WORKER_TITLE)) == 2
        second = await assert_a_killed_worker_is_seen(governor)
        governor.process.kill()
        await governor.end()
    left = table.members(second)
    assert second.pid in left
    async with ScriptedEngine("say") as other, up(home, "--upstream", other.url):
        assert living(left) == []

"""The real SGLang under ``governor up``: its scheduler killed, the governor killed, and nobody left behind.

One start of the engine, since each costs 20 CPU seconds: the second one is cut short.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from governor.settings import Home
from serve.process_table import EngineRecord, ProcessTable
from serve.scripted import ScriptedEngine
from serve.sglang_launcher import WORKER_TITLE
from tests.sglang.engine import ENGINES, installed_engine
from tests.up import living, until, up

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

_READY_S = 600


def record(home: Home) -> EngineRecord:
    return msgspec.json.decode((home.run / "engine.json").read_bytes(), type=EngineRecord)


async def test_killed_scheduler_then_killed_governor(tmp_path: Path) -> None:
    await asyncio.to_thread(installed_engine)
    home, table = Home(tmp_path / "home"), ProcessTable()
    async with up(home, "--profile", "sglang-cpu", environment={"GOVERNOR_ENGINES": str(ENGINES)}) as governor:
        await governor.wait_for_mode("ready", within_s=_READY_S)
        answer = await governor.chat(max_tokens=4)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4

        assert not (await governor.state()).alerts  # our plugin has proved its hooks

        first = record(home)
        workers = table.titled(first, WORKER_TITLE)
        assert len(workers) == 2  # scheduler and detokenizer, found by what they call themselves
        members = table.members(first)
        scheduler = next(pid for pid in workers if pid in table.titled(first, "sglang::scheduler"))
        os.kill(scheduler, signal.SIGKILL)
        detail = await governor.wait_for_mode("coming", within_s=30)
        assert "restart 1 of 5" in detail
        assert str(scheduler) in detail or "worker" in detail
        await until(lambda: living(members) == [], within_s=30)

        await until((home.run / "engine.json").exists, within_s=30)
        second = record(home)
        assert second.pid != first.pid
        governor.process.kill()
        await governor.end()
    left = table.members(second)
    assert second.pid in left
    async with ScriptedEngine("say") as other, up(home, "--upstream", other.url):
        assert living(left) == []

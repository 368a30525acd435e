"""W50 busy-not-down: an engine that works is left alone however silent its pages are; one that is dead is replaced
however well they answer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from serve.lifecycle import EngineState, RestartPolicy
from serve.supervisor import Supervisor
from tests.sglang_program import Faults, lines, pids
from tests.supervised import Supervised
from tests.up import living, until

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Supervised]:
    async with Supervised(tmp_path) as rig:
        yield rig


async def ready(rig: Supervised, faults: Faults | None = None, *, stall_limit_s: float = 900) -> Supervisor:
    policy = RestartPolicy(first_delay_s=0.1, stall_probes=2, stall_limit_s=stall_limit_s)
    supervisor = rig.make(faults or Faults(), policy)
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    return supervisor


async def test_W50_an_engine_whose_pages_hang_is_left_alone_while_its_answer_flows(rig: Supervised) -> None:
    supervisor = await ready(rig, Faults(answer_tokens=60, tokens_per_s=30), stall_limit_s=0.6)
    (rig.folder / "hang").touch()
    async with (
        httpx.AsyncClient(base_url=rig.url, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=CHAT) as answer,
    ):
        seen = b""
        async for chunk in answer.aiter_raw():
            seen += chunk
            supervisor.note_progress()
    assert b"[DONE]" in seen
    assert EngineState.BUSY in rig.states
    assert len(lines(rig.folder, "starts")) == 1
    hanging = lines(rig.folder, "hanging")
    assert len(hanging) >= 3
    assert set(hanging) == {"1"}  # never are two questions open
    (rig.folder / "hang").unlink()
    await until(lambda: supervisor.state is EngineState.READY)
    assert supervisor.restarts == 0


async def test_W50_without_any_sign_of_life_it_is_replaced(rig: Supervised) -> None:
    supervisor = await ready(rig, stall_limit_s=0.5)
    first = supervisor.pid
    (rig.folder / "hang").touch()
    await until(lambda: EngineState.DOWN in rig.states)
    (rig.folder / "hang").unlink()
    await until(lambda: supervisor.state is EngineState.READY)
    assert supervisor.pid != first
    assert "made no progress" in rig.detail_of(EngineState.DOWN)


async def test_W50_a_scheduler_that_publishes_nothing_is_busy_then_replaced_though_http_answers(
    rig: Supervised,
) -> None:
    supervisor = await ready(rig, stall_limit_s=0.5)
    (rig.folder / "stuck").touch()
    await until(lambda: EngineState.BUSY in rig.states)
    assert "its scheduler has published nothing for 36" in rig.detail_of(EngineState.BUSY)
    await until(lambda: EngineState.DOWN in rig.states)
    (rig.folder / "stuck").unlink()
    await until(lambda: supervisor.state is EngineState.READY)


async def test_W50_a_killed_worker_ends_an_engine_that_goes_on_answering(rig: Supervised) -> None:
    supervisor = await ready(rig)
    main, scheduler, *_ = first = pids(rig.folder)
    async with httpx.AsyncClient(base_url=rig.url, trust_env=False) as client:
        os.kill(scheduler, signal.SIGKILL)
        assert (await client.get("/v1/loads")).status_code == 200
    await until(lambda: EngineState.DOWN in rig.states)
    assert rig.detail_of(EngineState.DOWN).startswith(f"a worker of the engine (process {scheduler}) has died")
    await until(lambda: supervisor.state is EngineState.READY)
    assert supervisor.pid != main
    assert living(first) == []


async def test_W50_a_real_exit_is_restarted_in_seconds(rig: Supervised) -> None:
    supervisor = await ready(rig)
    first = pids(rig.folder)
    os.kill(first[0], signal.SIGKILL)
    began = time.monotonic()
    await until(lambda: supervisor.state is EngineState.READY and supervisor.pid not in {None, first[0]})
    assert time.monotonic() - began < 10
    assert living(first) == []

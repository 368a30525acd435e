"""W55 crash-loop: restarts wait longer and longer, end with the reason, and no request is played again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from governor.settings import Home
from serve.errors import EngineFailed
from serve.lifecycle import EngineState, RestartPolicy
from tests.sglang_program import Faults, lines, pids, set_faults, stand_in
from tests.supervised import Supervised
from tests.up import living, until, up

GPU_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.1 GiB free."
NO_WEIGHTS = "OSError: /models/qwen is not a local folder and is not a valid model identifier listed on the hub"


def command(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "GOVERNOR_HOME": str(home.root)}
    argv = [sys.executable, "-m", "governor", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=30)


async def test_W55_restarts_back_off_then_end_with_the_reason_and_its_cure(tmp_path: Path) -> None:
    async with Supervised(tmp_path) as rig:
        policy = RestartPolicy(first_delay_s=0.2, max_delay_s=0.8, max_restarts=4)
        supervisor = rig.make(Faults(exit_code=1, last_words=("loading", GPU_FULL, "SIGQUIT received.")), policy)
        await supervisor.start()
        with pytest.raises(EngineFailed) as failed:
            await asyncio.wait_for(supervisor.ensure_ready(), 30)
        starts = [float(line) for line in lines(tmp_path, "starts")]
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        assert all(gap >= delay for gap, delay in zip(gaps, (0.2, 0.4, 0.8, 0.8), strict=True))
        assert "gave up after 4 restarts: the GPU's memory is full" in failed.value.message
        assert "mem_fraction_static" in failed.value.message
        assert GPU_FULL in failed.value.log_tail


async def test_W55_memory_that_is_free_a_little_later_is_waited_for(tmp_path: Path) -> None:
    async with Supervised(tmp_path) as rig:
        faults = Faults(exit_code=1, last_words=(GPU_FULL,), failing_starts=2)
        supervisor = rig.make(faults, RestartPolicy(first_delay_s=0.1))
        await supervisor.start()
        await asyncio.wait_for(supervisor.ensure_ready(), 20)
        assert supervisor.restarts == 2


async def test_W55_a_slow_start_is_a_start_as_long_as_it_shows_life(tmp_path: Path) -> None:
    async with Supervised(tmp_path) as rig:
        policy = RestartPolicy(start_silence_s=1.0, start_limit_s=30)
        supervisor = rig.make(Faults(load_s=2.5), policy)
        await supervisor.start()
        await asyncio.wait_for(supervisor.ensure_ready(), 20)
        assert supervisor.restarts == 0
        assert EngineState.DOWN not in rig.states


async def test_W55_a_cause_that_stays_is_told_at_once_and_a_retry_needs_no_new_governor(tmp_path: Path) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder, Faults(exit_code=1, last_words=(NO_WEIGHTS,)))
    async with up(home, "--profile", profile, "--python", python) as governor:
        detail = await governor.wait_for_mode("down")
        assert "the weights or a file of theirs cannot be found" in detail
        assert len(lines(folder, "starts")) == 1
        answer = await governor.chat()
        assert answer.status_code == 503
        assert "cannot be found" in answer.text
        assert "--model DIR" in answer.text
        shown = command(home, "status")
        assert shown.returncode == 4
        assert "cannot be found" in shown.stdout

        set_faults(folder, Faults())
        assert command(home, "engine", "retry").returncode == 0
        await governor.wait_for_mode("ready")
        assert (await governor.chat()).status_code == 200


async def test_W55_a_request_that_kills_the_engine_is_not_sent_again(tmp_path: Path) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder, Faults(exit_code=1, on_turn=True))
    async with up(home, "--profile", profile, "--python", python) as governor:
        await governor.wait_for_mode("ready")
        set_faults(folder, Faults())
        answer = await governor.chat()
        assert answer.status_code in {502, 503}
        await governor.wait_for_mode("ready")
        assert len(lines(folder, "turns")) == 1
        assert (await governor.chat()).status_code == 200
        assert len(lines(folder, "turns")) == 2


@pytest.mark.parametrize("victim", ["main", "scheduler"])
async def test_W55_a_killed_engine_is_back_without_a_new_governor(tmp_path: Path, victim: str) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder, Faults(answer_tokens=400, tokens_per_s=20))
    async with up(home, "--profile", profile, "--python", python) as governor:
        await governor.wait_for_mode("ready")
        first = pids(folder)
        asked = {"model": "tiny-hybrid", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        seen = b""
        async with governor.client() as client, client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            async for chunk in answer.aiter_raw():
                if not seen:
                    os.kill(first[0 if victim == "main" else 1], signal.SIGKILL)
                seen += chunk
        assert b'"error"' in seen
        await until(lambda: len(lines(folder, "starts")) == 2)
        await governor.wait_for_mode("ready")
        assert living(first) == []
        assert len(living(pids(folder))) == 3

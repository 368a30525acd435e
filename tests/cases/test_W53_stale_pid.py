"""W53 stale-pid-adoption: after ``kill -9`` of the governor the next start finds its own engine and no other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from governor.settings import Home
from serve.process_table import EngineRecord, ProcessTable
from serve.scripted import ScriptedEngine
from tests.sglang_program import Faults, lines, pids, port_of, set_faults, stand_in, start_worker
from tests.up import is_alive, living, started, told, until, up


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that calls itself as the engine's workers do, and is nobody's of ours."""
    process = start_worker("sglang::scheduler_TP0")
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize("moment", ["loading", "ready", "streaming"])
async def test_W53_a_governor_killed_at_any_moment_leaves_a_clean_next_start(
    moment: str, tmp_path: Path, stranger: int
) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    faults = Faults(load_s=30 if moment == "loading" else 0, answer_tokens=1000, tokens_per_s=20, stray=True)
    python, profile = stand_in(folder, faults)
    async with up(home, "--profile", profile, "--python", python) as first:
        await until(lambda: len(pids(folder)) == 4)
        if moment != "loading":
            await first.wait_for_mode("ready")
        if moment == "streaming":
            asked = {"model": "tiny-hybrid", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
            async with first.client() as client, client.stream("POST", "/v1/chat/completions", json=asked) as answer:
                async for _ in answer.aiter_raw():
                    break
                first.process.kill()
        else:
            first.process.kill()
        await first.end()
    left = pids(folder)
    assert living(left) == left  # SGLang goes on without its parent
    set_faults(folder, Faults())
    async with up(home, "--profile", profile, "--python", python) as second:
        await second.wait_for_mode("ready")
        assert living(left) == []
        assert len(living(pids(folder))) == 3
        assert (await second.chat()).status_code == 200
    assert is_alive(stranger)


async def test_W53_what_a_killed_engine_of_a_killed_governor_leaves_is_ended(tmp_path: Path, stranger: int) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder, Faults(stray=True))
    async with up(home, "--profile", profile, "--python", python) as first:
        await first.wait_for_mode("ready")
        first.process.kill()
        await first.end()
    engine, *workers = pids(folder)
    os.kill(engine, signal.SIGKILL)
    await until(lambda: not is_alive(engine))
    assert living(workers) == workers
    async with up(home, "--profile", profile, "--python", python) as second:
        await second.wait_for_mode("ready")
        assert living(workers) == []
    assert is_alive(stranger)


async def test_W53_an_orphan_is_ended_though_the_next_governor_launches_nothing(tmp_path: Path, stranger: int) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder)
    async with up(home, "--profile", profile, "--python", python) as first:
        await until(lambda: len(pids(folder)) == 3)
        first.process.kill()
        await first.end()
    async with ScriptedEngine("say") as other, up(home, "--upstream", other.url):
        assert living(pids(folder)) == []
    assert is_alive(stranger)


async def test_W53_a_pid_that_is_somebody_elses_now_is_left_alone(tmp_path: Path, stranger: int) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder)
    record = ProcessTable().record(stranger, ("another",), "another")
    assert record is not None
    home.run.mkdir(parents=True)
    (home.run / "engine.json").write_bytes(msgspec.json.encode(record))
    async with up(home, "--profile", profile, "--python", python) as governor:
        await governor.wait_for_mode("ready")
        written = msgspec.json.decode((home.run / "engine.json").read_bytes(), type=EngineRecord)
        assert written.pid == pids(folder)[0]
    assert is_alive(stranger)


async def test_W53_a_stranger_on_the_port_is_named_and_gets_nothing(tmp_path: Path) -> None:
    """It took the port while the engine was down, and answers 200 to everything it is asked."""
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder)
    async with up(home, "--profile", profile, "--python", python) as governor:
        await governor.wait_for_mode("ready")
        engine = pids(folder)[0]
        port = port_of(engine)
        os.kill(engine, signal.SIGKILL)
        async with asyncio.timeout(5):
            while True:
                foreign = ScriptedEngine("say", port=port)
                try:
                    await foreign.start()
                    break
                except OSError:
                    await asyncio.sleep(0.01)
        try:
            detail = await governor.wait_for_mode("down")
            assert f"process {os.getpid()} already listens on port {port}" in detail
            answer = await governor.chat()
            assert answer.status_code == 503
            assert f"process {os.getpid()}" in answer.text
            await asyncio.sleep(1.0)  # the gateway looks again twice a second
            assert (await governor.state()).engine.mode == "down"
            assert foreign.hits == foreign.probes == []
        finally:
            await foreign.aclose()
        assert len(lines(folder, "starts")) == 1


async def test_W53_of_two_governors_in_one_home_one_wins(tmp_path: Path) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder)
    arguments = ("--profile", profile, "--python", python)
    both = await asyncio.gather(started(home, *arguments), started(home, *arguments))
    ended = [asyncio.create_task(process.wait()) for process in both]
    try:
        await asyncio.wait(ended, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        loser = next(process for process in both if process.returncode is not None)
        winner = next(process for process in both if process is not loser)
        assert winner.returncode is None
        assert loser.returncode != 0
        assert f"{home.root} already" in await told(loser)
        await until(lambda: len(lines(folder, "starts")) == 1)
    finally:
        for process in both:
            if process.returncode is None:
                process.terminate()
        for process in both:
            await process.communicate()
    assert living(pids(folder)) == []

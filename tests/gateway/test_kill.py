"""A governor that is killed in the middle of a stream: nothing it held is lost or stays held."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from governor import instance
from governor.settings import Home
from governor.store.query import TurnLogReader
from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.rawhttp import connected, request_bytes

UP_WITHIN_S = 30.0
PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = msgspec.json.encode({**BODY, "stream": True})


class Up:
    """``governor up`` in a process of its own."""

    def __init__(self, home: Home, process: asyncio.subprocess.Process) -> None:
        self.home = home
        self.process = process
        note = instance.running_instance(home)
        assert note is not None
        self.url = note.url
        self.key = home.owner_key.read_text().strip()

    async def chat(self) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=20) as client:
            return await client.post(PATH, json=BODY, headers={"authorization": f"Bearer {self.key}"})

    def states(self) -> list[TurnState]:
        """Of all turns, the last one first."""
        return [row.state for row in TurnLogReader(f"sqlite:///{self.home.database}").recent(limit=100)]

    async def wait_for_states(self, *states: TurnState) -> None:
        """The log is written a little later."""
        async with asyncio.timeout(5):
            while self.states() != list(states):  # noqa: ASYNC110 - the log is another process's
                await asyncio.sleep(0.02)


def start(home: Home, *arguments: str) -> Any:
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return asyncio.create_subprocess_exec(
        sys.executable, "-m", "governor", "up", *arguments,
        env=environment | {"GOVERNOR_HOME": str(home.root)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@asynccontextmanager
async def up(home: Home, engine: ScriptedEngine, port: int = 0) -> AsyncIterator[Up]:
    """A governor that listens; killed at the end, if it still runs."""
    process = await start(home, "--upstream", engine.url, "--port", str(port))
    try:
        async with asyncio.timeout(UP_WITHIN_S):
            while (note := instance.running_instance(home)) is None or note.pid != process.pid:
                if process.returncode is not None:
                    _, told = await process.communicate()
                    raise AssertionError(told.decode())
                await asyncio.sleep(0.05)
        yield Up(home, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    knobs = Knobs(model="m", answer_tokens=400, decode_tokens_per_s=100)
    async with ScriptedEngine("say", "say", knobs=knobs) as engine:
        yield engine


async def test_killed_in_the_middle_of_a_stream(home: Home, engine: ScriptedEngine) -> None:
    async with up(home, engine) as first, connected(first.url) as raw:
        await raw.send(request_bytes(PATH, STREAM, key=first.key))
        await raw.read_until(b"data:")
        await first.wait_for_states(TurnState.OPEN)
        os.kill(first.process.pid, signal.SIGKILL)
        seen = await raw.read_to_end()
        assert b"[DONE]" not in seen
        await engine.wait_idle(1.0)
        await first.process.wait()
        assert instance.running_instance(home) is None
        assert first.states() == [TurnState.OPEN]
    port = int(first.url.rpartition(":")[2])
    assert can_be_bound(port)

    async with up(home, engine, port) as second:
        assert second.url == first.url
        assert second.key == first.key
        assert (await second.chat()).status_code == 200
        await second.wait_for_states(TurnState.OK, TurnState.INTERRUPTED)


async def test_stopped_in_the_middle_of_a_stream(home: Home, engine: ScriptedEngine) -> None:
    """An orderly stop lets a stream end that can end in time, and lets nobody new in."""
    async with up(home, engine) as only, connected(only.url) as raw:
        await raw.send(request_bytes(PATH, STREAM, key=only.key))
        await raw.read_until(b"data:")
        os.kill(only.process.pid, signal.SIGTERM)
        seen = await raw.read_to_end(timeout_s=20)
        assert b"[DONE]" in seen
        assert await only.process.wait() == 0
        assert instance.running_instance(home) is None
        assert only.states() == [TurnState.OK]


async def test_a_second_one_is_refused_while_the_first_serves_on(home: Home, engine: ScriptedEngine) -> None:
    async with up(home, engine) as first:
        second = await start(home, "--upstream", engine.url, "--port", "0")
        _, told = await second.communicate()
        assert second.returncode not in {0, None}
        assert str(first.process.pid).encode() in told
        assert (await first.chat()).status_code == 200

"""``governor up`` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from governor import instance
from governor.settings import Home
from governor.snapshot import Snapshot
from serve.launcher import end_orphan

_LISTENS_WITHIN_S = 30.0
_ENDS_WITHIN_S = 30.0


class Up:
    """A governor that listens."""

    def __init__(self, home: Home, process: asyncio.subprocess.Process) -> None:
        self.home = home
        self.process = process
        note = instance.running_instance(home)
        if note is None:
            raise RuntimeError("it does not run")
        self.url = note.url
        self._admin = note.admin_token
        self._key = home.owner_key.read_text().strip()

    def client(self) -> httpx.AsyncClient:
        """As the owner."""
        headers = {"authorization": f"Bearer {self._key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=60)

    async def chat(self, **body: Any) -> httpx.Response:
        asked = {"model": "tiny-hybrid", "messages": [{"role": "user", "content": "hi"}]} | body
        async with self.client() as client:
            return await client.post("/v1/chat/completions", json=asked)

    async def state(self) -> Snapshot:
        headers = {"authorization": f"Bearer {self._admin}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False) as client:
            answer = await client.get("/governor/state")
        return msgspec.json.decode(answer.raise_for_status().content, type=Snapshot)

    async def wait_for_mode(self, mode: str, within_s: float = 30.0, *, saying: str = "") -> str:
        """Until the engine is in this mode and its detail has these words; the detail."""
        async with asyncio.timeout(within_s):
            while True:
                engine = (await self.state()).engine
                if engine.mode == mode and saying in engine.detail:
                    return engine.detail
                await asyncio.sleep(0.05)

    async def wait_for_alert(self, text: str, within_s: float = 15.0) -> None:
        async with asyncio.timeout(within_s):
            while not any(text in alert for alert in (await self.state()).alerts):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def end(self, within_s: float = 30.0) -> int:
        """Wait for its end; its exit status."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()


@asynccontextmanager
async def up(home: Home, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> AsyncIterator[Up]:
    """Start it and wait until it listens; stopped at the end, if it still runs."""
    process = await started(home, *arguments, environment=environment)
    try:
        async with asyncio.timeout(_LISTENS_WITHIN_S):
            while (note := instance.running_instance(home)) is None or note.pid != process.pid:
                if process.returncode is not None:
                    raise AssertionError(await told(process))
                await asyncio.sleep(0.05)
        yield Up(home, process)
    finally:
        if process.returncode is None:
            process.terminate()
            await _end_at_last(process, home)
        await process.communicate()


async def _end_at_last(process: asyncio.subprocess.Process, home: Home) -> None:
    """A governor that does not stop is killed, and its engine is not left to the machine."""
    try:
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        await end_orphan(home)


async def started(
    home: Home, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """``governor up`` with a clean environment and what is given here, listening or not."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    words = [sys.executable, "-m", "governor", "up", "--port", "0", *map(str, arguments)]
    return await asyncio.create_subprocess_exec(
        *words,
        env=clean | dict(environment or {}) | {"GOVERNOR_HOME": str(home.root)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def told(process: asyncio.subprocess.Process) -> str:
    """What it wrote to stderr, once it has ended."""
    _, words = await process.communicate()
    return words.decode()


async def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    """For conditions in other processes, which nothing announces."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """In the process table, and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]

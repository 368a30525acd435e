"""A real governor on a free port, in this process, in front of whatever URL a test gives it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from governor.clock import SystemClock
from governor.gateway.engine_watch import WatchTimes
from governor.gateway.server import bound_socket
from governor.identity.agents import AgentBook
from governor.runtime import Governor, RuntimeConfig
from governor.schedule.events import EngineMode
from governor.settings import Home, Secret
from governor.snapshot import Snapshot
from governor.store.archive_model import Archive
from governor.store.database import sqlite_url
from governor.store.model import StoredTurn, TurnClosed
from governor.store.query import TurnLogReader
from governor.store.turnlog import SqlTurnLog
from governor.wiring import EngineTarget, assembled

ADMIN_TOKEN = "admin-token-of-the-tests"
QUICK = WatchTimes(while_coming_s=0.02, while_ready_s=0.2, down_after_s=2.0)


_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here speaks TLS, and a context with the usual certificates takes 60 ms to build."""


class Governed:
    """A running governor and what a test needs to talk to it."""

    def __init__(
        self,
        url: str,
        keys: dict[str, str],
        home: Home,
        governor: Governor,
        turn_log: SqlTurnLog,
        stop: Callable[[], None],
    ) -> None:
        self.url = url
        self.keys = keys
        self.home = home
        self.governor = governor
        self.stop = stop
        """Asks the governor to end, as a signal does."""
        self._turn_log = turn_log
        self._reader = TurnLogReader(sqlite_url(home.database))

    def client(self, agent: str | None = "alice", **options: Any) -> httpx.AsyncClient:
        """An HTTP client with the agent's key, or without one."""
        headers = {} if agent is None else {"authorization": f"Bearer {self.keys[agent]}"}
        return httpx.AsyncClient(
            base_url=self.url,
            headers={**headers, **options.pop("headers", {})},
            timeout=30,
            trust_env=False,
            verify=_NO_TLS,
            **options,
        )

    @property
    def archive(self) -> Archive:
        """What left prompts."""
        return self.governor.archive

    async def chat(self, agent: str = "alice", **body: Any) -> httpx.Response:
        """One chat call; ``model`` and ``messages`` have defaults."""
        defaults = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with self.client(agent) as client:
            return await client.post("/v1/chat/completions", json=defaults | body)

    async def rows(self) -> list[StoredTurn]:
        """All turns in the log, oldest first, once everything is written."""
        async with asyncio.timeout(10):
            await self.governor.book.wait_until_none_open()
        if not await asyncio.to_thread(self._turn_log.flush, 10):
            raise TimeoutError("the turn log was not written in time")
        return list(reversed(self._reader.recent(limit=100_000)))

    async def ends(self) -> list[TurnClosed]:
        """The ends of all turns, oldest first; every turn must have one."""
        rows = await self.rows()
        ends = [row.closed for row in rows if row.closed is not None]
        if len(ends) != len(rows):
            raise AssertionError("a turn has no end")
        return ends

    async def end(self) -> TurnClosed:
        """The end of the only turn."""
        ends = await self.ends()
        if len(ends) != 1:
            raise AssertionError(f"{len(ends)} turns, expected one")
        return ends[0]

    async def snapshot(self) -> Snapshot:
        async with self.client(None, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}) as client:
            answer = await client.get("/governor/state")
        return msgspec.json.decode(answer.raise_for_status().content, type=Snapshot)

    async def assert_idle(self) -> None:
        """Nothing is left of any turn: leases, counters, open turns."""
        async with asyncio.timeout(5):
            await self.governor.book.wait_until_none_open()
            while self.governor.admission.running or self.governor.admission.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self.governor.admission.check_integrity()
        self.governor.sessions.check_integrity()
        self.governor.history.book.check_integrity()
        self.governor.heads.book.check_integrity()
        self.governor.shaping.stabiliser.check_integrity()


@asynccontextmanager
async def governed(
    engine_url: str,
    root: Path,
    *,
    policies: Mapping[str, str] | None = None,
    agents: tuple[str, ...] = ("alice",),
    config: RuntimeConfig | None = None,
    wait_ready: bool = True,
    port: int = 0,
    **options: Any,
) -> AsyncIterator[Governed]:
    """Run a governor in ``root``. ``policies`` are the texts of agents' policy files; ``options`` go to
    :func:`governor.wiring.assembled`, but ``engine_kind`` and ``engine_key``."""
    home = Home(root)
    home.policies.mkdir(parents=True, exist_ok=True)
    for name, text in (policies or {}).items():
        (home.policies / f"{name}.toml").write_text(text)
    book = AgentBook(home.agents, SystemClock())
    keys = {name: book.add(name).reveal() for name in agents}
    key = options.pop("engine_key", None)
    target = EngineTarget(url=engine_url, kind=options.pop("engine_kind", "upstream"), key=key and Secret(key))
    chosen = config or RuntimeConfig()
    if chosen.watch_times == WatchTimes():
        chosen = msgspec.structs.replace(chosen, watch_times=QUICK, stop_within_s=min(chosen.stop_within_s, 2))
    with assembled(home, target, Secret(ADMIN_TOKEN), config=chosen, **options) as (governor, turn_log):
        bound = bound_socket("127.0.0.1", port)
        stop, listening = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(governor.run(bound, stop, listening.set))
        try:
            async with asyncio.timeout(10):
                await listening.wait()
                while wait_ready and governor.watch.mode is not EngineMode.READY:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            yield Governed(f"http://127.0.0.1:{bound.getsockname()[1]}", keys, home, governor, turn_log, stop.set)
        finally:
            stop.set()
            await running

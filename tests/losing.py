"""A twin whose cache is emptied, taken and killed behind a governor, and conversations that go on all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from governor.gateway.sglang_cache import CachePlaces, SglangCache
from tests.harness import Governed, governed
from tests.residing import until_known
from tests.sglang_adapter import MODEL, words
from tests.twin_server import Running, small_machine, twin_server

AGENTS = ("ann", "ben")
L1_ONLY = {"host_tokens": 0, "host_slots": 0, "storage_tokens": 0}
_QUIET = {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}


class Engine:
    """A twin that can be killed and started anew at its address."""

    def __init__(self, folder: Path, tiers: dict[str, Any], *, tells: bool) -> None:
        self._folder = folder
        self._tiers = tiers
        self._running = AsyncExitStack()
        self._tells = tells
        self.twin: Running
        self.port = 0

    async def start(self) -> None:
        feeds: dict[str, Any] = {}
        if self._tells:
            feeds = {
                "kv_events_endpoint": f"ipc://{self._folder}/kv",
                "kv_replay_endpoint": f"ipc://{self._folder}/replay",
                "plugin_socket": self._folder / "plugin",
            }
        server = twin_server(small_machine(tiers=self._tiers), port=self.port, **feeds)
        self.twin = await self._running.enter_async_context(server)
        self.port = int(self.twin.url.rpartition(":")[2])

    async def stop(self) -> None:
        await self._running.aclose()

    def cache(self) -> SglangCache | None:
        if not self._tells:
            return None
        places = CachePlaces(
            kv_events=f"ipc://{self._folder}/kv",
            kv_replay=f"ipc://{self._folder}/replay",
            plugin_socket=self._folder / "plugin",
        )
        return SglangCache(self.twin.url, places)

    async def flush(self) -> None:
        (await self.twin.client.post("/flush_cache", params={"timeout": 20})).raise_for_status()


class Talk:
    """One agent's conversation, sent as it was and longer."""

    def __init__(self, gateway: Governed, agent: str, seed: int) -> None:
        self._gateway = gateway
        self._agent = agent
        self._seed = seed
        self.messages: list[dict[str, Any]] = []

    async def ask(self, length: int) -> None:
        self._seed += 1
        self.messages.append({"role": "user", "content": words(self._seed, length)})
        twin = {"tokens": 8, "reasoning_tokens": 0, "calls": []}
        body = {"model": MODEL, "messages": self.messages, "max_tokens": 8, "custom_params": {"twin": twin}, **_QUIET}
        async with self._gateway.client(self._agent) as client:
            answer = await client.post("/v1/chat/completions", json=body)
        self.messages.append(answer.raise_for_status().json()["choices"][0]["message"])
        await self._gateway.governor.residency.settled()


@asynccontextmanager
async def losing(
    folder: Path, root: Path, *, tells: bool = True, **tiers: Any
) -> AsyncIterator[tuple[Engine, Governed]]:
    engine = Engine(folder, L1_ONLY | tiers, tells=tells)
    await engine.start()
    try:
        async with governed(
            engine.twin.url, root, engine_kind="sglang", agents=AGENTS, cache=engine.cache()
        ) as gateway:
            if tells:
                await until_known(gateway)
            yield engine, gateway
            await gateway.assert_idle()
    finally:
        await engine.stop()

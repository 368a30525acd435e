"""The residency index beside the twin: what each turn is served was known before, through evictions and restarts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from governor.gateway.sglang_cache import CachePlaces, SglangCache
from governor.settings import Home
from serve.twin.tiers_model import HostMode
from tests.harness import governed
from tests.residing import AGENTS, POLICIES, MixedRun, is_known_well, until_known, until_ready
from tests.twin_server import Running, small_machine, twin_server
from tests.up import up

SPEED = 40.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cache-") as name:  # pytest's folders are too long for a socket
        yield Path(name)


class Engine:
    """A twin that can be started anew, on the same L3."""

    def __init__(self, folder: Path, stack: AsyncExitStack, host_mode: HostMode) -> None:
        self._folder = folder
        self._host_mode = host_mode
        self._stack = stack
        self._running = AsyncExitStack()
        self.twin: Running
        self.port = 0

    async def start(self) -> None:
        after = self.twin.server if self.port else None
        self.twin = await self._running.enter_async_context(
            twin_server(
                small_machine(tiers={"host_mode": self._host_mode}),
                speed=SPEED,
                after=after,
                port=self.port,
                kv_events_endpoint=f"ipc://{self._folder}/kv",
                kv_replay_endpoint=f"ipc://{self._folder}/replay",
                plugin_socket=self._folder / "plugin",
            )
        )
        self.port = int(self.twin.url.rpartition(":")[2])

    async def stop(self) -> None:
        await self._running.aclose()

    def cache(self) -> SglangCache:
        places = CachePlaces(
            kv_events=f"ipc://{self._folder}/kv",
            kv_replay=f"ipc://{self._folder}/replay",
            plugin_socket=self._folder / "plugin",
        )
        return SglangCache(self.twin.url, places, list_l3=self._in_l3)

    def _in_l3(self) -> list[str]:
        """As the names of files would be."""
        server = self.twin.server
        found = []
        for span in server.engine.tiers.storage.walk_spans():
            names = [name for run in span.key.runs for name in server.content.storage_names(run)]
            found += names[span.missing // 64 :]
            found += [f"{names[-1]}.mamba"] if span.has_state else []
        return found


@pytest.mark.parametrize("host_mode", HostMode)
async def test_what_turns_are_served_was_known(host_mode: HostMode, folder: Path, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = Engine(folder, stack, host_mode)
        await engine.start()
        stack.push_async_callback(engine.stop)
        gateway = await stack.enter_async_context(
            governed(
                engine.twin.url, tmp_path, engine_kind="sglang", agents=AGENTS, policies=POLICIES, cache=engine.cache()
            )
        )
        await until_known(gateway)

        async def restart() -> None:
            await engine.stop()
            await until_ready(gateway, is_ready=False)
            await engine.start()
            await until_ready(gateway)
            await until_known(gateway)

        run = MixedRun(gateway, engine.twin.url, restart, body())
        figures = await run.play(alone=48, at_once=24, settle_s=0.3)
        print("\n".join(run.told))
        assert is_known_well(figures), "\n".join(run.told)
        await gateway.assert_idle()


def body() -> dict[str, Any]:
    return {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}


async def test_the_owner_sees_it(tmp_path: Path) -> None:
    """``governor up`` on the twin: sockets, feeds and the state, as on SGLang."""
    words = "the quick brown fox jumps over the lazy dog " * 300
    async with up(Home(tmp_path / "h"), "--profile", "twin:rx7900xtx-tp2", "--speed", "300") as governor:
        await governor.wait_for_mode("ready")
        async with governor.client() as client:
            model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        messages: list[dict[str, Any]] = [{"role": "user", "content": words}]
        for _ in range(2):
            answer = await governor.chat(model=model, messages=messages, max_tokens=50)
            said = answer.raise_for_status().json()["choices"][0]["message"]
            messages += [said, {"role": "user", "content": "go on"}]
            await asyncio.sleep(1.0)  # the first turn may come before anybody listens, and is not predicted then
        seen = (await governor.state()).cache
    (context,) = seen.contexts
    assert context.agent == "owner"
    assert 0 < context.context_tokens - (context.l1_tokens or 0) <= 128
    assert (context.l2_tokens, context.l3_tokens, context.unknown_tokens) == (0, 0, 0)
    l1, l2, _ = seen.tiers
    assert (l1.capacity_tokens, l1.state_slots) == (231_872, 72)
    assert [holder.agent for holder in l1.holders] == ["owner"]
    assert l1.served_tokens
    assert l2.served_tokens == 0
    assert seen.predicted.within_page == seen.predicted.turns >= 1

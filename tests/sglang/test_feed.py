"""What the real SGLang tells: our plugin's proof, states in their tiers, L3, requests, and KV pages that agree."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.sglang_feed import (
    FeedEvent,
    KvCleared,
    KvFeed,
    KvRemoved,
    KvReset,
    KvStored,
    L3Changed,
    PluginFeed,
    PluginHello,
    PluginLost,
    PrefixMatched,
    RequestAdmitted,
    StateChanged,
    StatesKnown,
)
from serve.sglang_feed.events import KvTier, L3Change, StateChange, StateTier, short_hash
from serve.sglang_feed.plugin import plugin_hello
from tests.sglang.server import ServerOptions, SglangServer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

HOOKS_THAT_ALWAYS_RUN = ("UnifiedRadixCache.insert", "UnifiedRadixCache.match_prefix", "prepare_for_extend")


class Listener:
    """Both feeds of one server, and what a residency index would make of them."""

    def __init__(self) -> None:
        self.events: list[FeedEvent] = []
        self.kv: dict[KvTier, set[int]] = {tier: set() for tier in KvTier}
        self.states: dict[str, frozenset[StateTier]] = {}

    def __call__(self, event: FeedEvent) -> None:
        self.events.append(event)
        match event:
            case KvReset() | KvCleared():
                for pages in self.kv.values():
                    pages.clear()
            case KvStored(hashes=hashes, tier=tier):
                self.kv[tier].update(hashes)
            case KvRemoved(hashes=hashes, tier=tier):
                self.kv[tier].difference_update(hashes)
            case StatesKnown(states=states):
                self.states = {state.page: state.tiers for state in states}
            case StateChanged(page=page, tiers=tiers):
                self.states[page] = tiers
            case PluginLost():
                self.states.clear()

    def of(self, rid: str, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind) and event.rid == rid]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - the feeds have their own tasks and no event for this
                await asyncio.sleep(0.05)


@asynccontextmanager
async def listening(server: SglangServer) -> AsyncIterator[Listener]:
    listener = Listener()
    feeds = (
        PluginFeed(server.plugin_socket, listener),
        KvFeed(server.kv_events_endpoint, server.kv_replay_endpoint, listener),
    )
    running = [asyncio.create_task(feed.run()) for feed in feeds]
    try:
        await listener.until(lambda: {"StatesKnown", "KvReset"} <= {type(event).__name__ for event in listener.events})
        yield listener
    finally:
        for task in running:
            task.cancel()
        for task in running:
            with suppress(asyncio.CancelledError):
                await task


async def prompt(server: SglangServer, rid: str, seed: int, tokens: int) -> None:
    """Random tokens, so that nothing of it is cached by chance."""
    ids = random.Random(seed).choices(range(200, 30_000), k=tokens)  # noqa: S311 - not a secret
    body = {"input_ids": ids, "rid": rid, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
        (await client.post("/generate", json=body)).raise_for_status()


async def test_the_plugin_proves_that_every_hook_took_hold(sglang_server: SglangServer) -> None:
    await prompt(sglang_server, "proof", 1, 100)
    hello = await plugin_hello(sglang_server.plugin_socket)
    assert hello is not None
    assert hello.missing_hooks == ()
    assert (hello.page_tokens, hello.has_states, hello.failures, hello.dropped) == (64, True, 0, 0)
    for name in HOOKS_THAT_ALWAYS_RUN:
        assert any(target.endswith(name) and calls > 0 for target, calls in hello.calls.items()), name


async def test_a_prompts_way_through_all_tiers_is_told(sglang_server: SglangServer) -> None:
    async with listening(sglang_server) as heard:
        await prompt(sglang_server, "first", 2, 700)
        await heard.until(lambda: bool(heard.of("first", RequestAdmitted)))
        (cold,) = heard.of("first", RequestAdmitted)
        assert (cold.device_tokens, cold.host_tokens, cold.storage_tokens) == (0, 0, 0)
        await heard.until(lambda: any(state_is(event, StateChange.BACKED_UP, 640) for event in heard.events))
        stored = next(event for event in heard.events if state_is(event, StateChange.STORED, 640))
        assert isinstance(stored, StateChanged)
        page = stored.page
        assert heard.states[page] == {StateTier.DEVICE, StateTier.HOST}
        await heard.until(lambda: short_hash(page) in heard.kv[KvTier.HOST])
        assert short_hash(page) in heard.kv[KvTier.DEVICE]
        await heard.until(lambda: any(page in written(event) for event in heard.events))

        for seed in range(300, 306):  # more than the pool holds
            await prompt(sglang_server, f"push-{seed}", seed, 1600)
        await heard.until(lambda: heard.states.get(page) == frozenset({StateTier.HOST}))
        await heard.until(lambda: short_hash(page) not in heard.kv[KvTier.DEVICE])
        assert short_hash(page) in heard.kv[KvTier.HOST]

        await prompt(sglang_server, "from-host", 2, 700)
        await heard.until(lambda: bool(heard.of("from-host", RequestAdmitted)))
        matched = heard.of("from-host", PrefixMatched)[0]
        assert (matched.prompt_tokens, matched.usable_tokens, matched.device_tokens) == (699, 640, 0)
        assert heard.of("from-host", RequestAdmitted)[0].host_tokens == 640
        await heard.until(lambda: any(state_is(event, StateChange.RESTORED, 640) for event in heard.events))

        async with httpx.AsyncClient(base_url=sglang_server.url, timeout=60, trust_env=False) as client:
            (await client.post("/flush_cache?timeout=20")).raise_for_status()
        await heard.until(lambda: not heard.states and not heard.kv[KvTier.DEVICE] and not heard.kv[KvTier.HOST])

        await prompt(sglang_server, "from-disk", 2, 700)
        await heard.until(lambda: bool(heard.of("from-disk", RequestAdmitted)))
        of_l3 = [(event.change, event.tokens) for event in heard.of("from-disk", L3Changed)]
        assert of_l3 == [(L3Change.FOUND, 640), (L3Change.LOADED, 640)]
        assert heard.of("from-disk", RequestAdmitted)[0].storage_tokens == 640
        await heard.until(lambda: any(state_is(event, StateChange.LOADED, 640) for event in heard.events))
        assert not [event for event in heard.events if isinstance(event, PluginLost)]


async def test_an_engine_of_two_ranks_tells_once_and_is_followed_through_a_restart(tmp_path: Path) -> None:
    """On the Python tree core, since the shared server runs the Rust one."""
    options = ServerOptions(tp_size=2, env={"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"})
    with SglangServer(tmp_path, options) as server:
        async with listening(server) as heard:
            for rid in ("one", "two"):
                await prompt(server, rid, 8, 700)
            await heard.until(lambda: bool(heard.of("two", RequestAdmitted)))
            assert [event.device_tokens for event in heard.of("two", RequestAdmitted)] == [640]
            hello = await plugin_hello(server.plugin_socket)
            assert hello is not None
            assert (hello.tree, hello.missing_hooks, hello.failures) == ("UnifiedTreeCore", (), 0)
            await heard.until(lambda: any(written(event) for event in heard.events))

            server.kill()
            await heard.until(lambda: any(isinstance(event, PluginLost) for event in heard.events))
            assert not heard.states
            server.start()
            await asyncio.to_thread(server.wait_ready)
            await prompt(server, "after", 8, 700)
            await heard.until(lambda: bool(heard.of("after", RequestAdmitted)))
            (loaded,) = [event for event in heard.of("after", L3Changed) if event.change is L3Change.LOADED]
            assert loaded.tokens == 640  # as all ranks have it
            (after,) = heard.of("after", RequestAdmitted)
            assert (after.device_tokens, after.host_tokens, after.storage_tokens) == (0, 0, 640)
            instances = [event.instance for event in heard.events if isinstance(event, PluginHello)]
            assert len(set(instances)) == 2
            assert sum(isinstance(event, KvReset) for event in heard.events) == 2
            await heard.until(lambda: len(heard.kv[KvTier.HOST]) == len(heard.kv[KvTier.DEVICE]) >= 10)


async def test_a_listener_that_comes_late_knows_the_same_states(sglang_server: SglangServer) -> None:
    async with listening(sglang_server) as early:
        await prompt(sglang_server, "late", 7, 700)
        await early.until(lambda: any(tiers == {StateTier.DEVICE, StateTier.HOST} for tiers in early.states.values()))
        await asyncio.sleep(0.5)
        held = {page: tiers for page, tiers in early.states.items() if tiers}
        async with listening(sglang_server) as late:
            assert late.states == held
            await late.until(lambda: late.kv == early.kv)


def state_is(event: FeedEvent, change: StateChange, tokens: int) -> bool:
    return isinstance(event, StateChanged) and event.change is change and event.tokens == tokens


def written(event: FeedEvent) -> tuple[str, ...]:
    return event.state_pages if isinstance(event, L3Changed) and event.change is L3Change.WRITTEN else ()

"""The plugin's socket and its listener: order, gaps, restarts, slow listeners, and that the engine never waits."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from serve.sglang_feed import (
    FeedEvent,
    L3Changed,
    PluginFeed,
    PluginHello,
    PluginLost,
    PrefixMatched,
    RequestAdmitted,
    StateChanged,
    StatesKnown,
)
from serve.sglang_feed.events import KnownState, L3Change, StateChange, StateTier, short_hash
from serve.sglang_feed.messages import Unreadable, read_line
from serve.sglang_feed.plugin import plugin_hello
from serve.sglang_plugin.engine_path.governor_sglang_plugin.channel import Channel

PAGE = "26ec6e3b6d1481d98ad4f808b17d06faa4e0fc8aec9fe94988ac880225b7e944"


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="plugin-") as folder:  # pytest's folders are too long for a socket
        yield Path(folder) / "plugin"


def greeting() -> dict[str, Any]:
    hooks = {"a.b": True, "c.d": True}
    return {"pid": 7, "tree": "T", "page_tokens": 64, "has_states": True, "hooks": hooks, "calls": {}, "failures": 0}


@contextmanager
def channel(path: Path, max_queued: int = 1000) -> Iterator[Channel]:
    made = Channel(str(path), greeting, max_queued)
    made.start()
    try:
        yield made
    finally:
        made.close()


class Heard:
    def __init__(self) -> None:
        self.events: list[FeedEvent] = []

    def __call__(self, event: FeedEvent) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - the feed has its own task and no event for this
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[Heard]:
    heard = Heard()
    running = asyncio.create_task(PluginFeed(path, heard).run())
    try:
        yield heard
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def post_state(to: Channel, page: str = PAGE, change: str = "stored", tiers: str = "d") -> None:
    to.post("state", change=change, tier="d", hash=page, tokens=640, tiers=tiers)


async def test_a_listener_is_greeted_and_told_all_states_first(path: Path) -> None:
    with channel(path) as engine:
        post_state(engine)
        post_state(engine, "gone")
        post_state(engine, "gone", "evicted", "")
        await asyncio.sleep(0.5)
        async with listening(path) as heard:
            await heard.until(lambda: len(heard.events) == 2)
            hello, states = heard.events
            assert isinstance(hello, PluginHello)
            assert (hello.instance, hello.missing_hooks, hello.page_tokens) == (engine.instance, (), 64)
            assert states == StatesKnown((KnownState(page=PAGE, tokens=640, tiers=frozenset({StateTier.DEVICE})),))


async def test_every_kind_of_message_arrives_in_order(path: Path) -> None:
    with channel(path) as engine:
        async with listening(path) as heard:
            await heard.until(lambda: len(heard.events) == 2)
            post_state(engine)
            engine.post("match", rid="r", prompt_tokens=9, kv_tokens=8, usable_tokens=7, device=6, host=1)
            engine.post("l3", change="written", hashes=[PAGE], state_hashes=[])
            engine.post("l3", change="evicted", file="x.mamba_0_1")
            engine.post("admitted", rid="r", prompt_tokens=9, device=1, host=2, storage=3)
            engine.post("of a newer plugin", anything=1)
            engine.post("l3", change="cleared")
            await heard.until(lambda: len(heard.events) == 8)
    device = frozenset({StateTier.DEVICE})
    assert heard.events[2:] == [
        StateChanged(change=StateChange.STORED, tier=StateTier.DEVICE, page=PAGE, tokens=640, tiers=device),
        PrefixMatched(rid="r", prompt_tokens=9, kv_tokens=8, usable_tokens=7, device_tokens=6, host_tokens=1),
        L3Changed(change=L3Change.WRITTEN, pages=(PAGE,)),
        L3Changed(change=L3Change.EVICTED, file="x.mamba_0_1"),
        RequestAdmitted(rid="r", prompt_tokens=9, device_tokens=1, host_tokens=2, storage_tokens=3),
        L3Changed(change=L3Change.CLEARED),
    ]


async def test_a_gap_makes_the_listener_begin_anew(path: Path) -> None:
    with channel(path, max_queued=5) as engine:
        async with listening(path) as heard:
            await heard.until(lambda: len(heard.events) == 2)
            for number in range(200):  # far more than the queue takes between two of its sender's turns
                post_state(engine, f"{number}")
            assert engine.dropped > 0
            await asyncio.sleep(0.4)
            post_state(engine, "after")  # the first number after the gap
            await heard.until(lambda: "PluginLost" in heard.kinds())
            await heard.until(lambda: heard.kinds().count("StatesKnown") == 2)
            lost = next(event for event in heard.events if isinstance(event, PluginLost))
            assert "were lost" in lost.reason
            known = [event for event in heard.events if isinstance(event, StatesKnown)][-1]
            assert "after" in {state.page for state in known.states}


async def test_an_engine_that_comes_late_and_comes_back_is_found(path: Path) -> None:
    async with listening(path) as heard:
        await asyncio.sleep(0.05)
        with channel(path) as first:
            await heard.until(lambda: len(heard.events) == 2)
            post_state(first)
            await heard.until(lambda: len(heard.events) == 3)
        await heard.until(lambda: heard.kinds()[-1] == "PluginLost")
        with channel(path) as second:
            await heard.until(lambda: heard.kinds()[-1] == "StatesKnown")
            hellos = [event.instance for event in heard.events if isinstance(event, PluginHello)]
            assert hellos == [first.instance, second.instance]
            assert heard.events[-1] == StatesKnown(())


async def test_a_killed_engines_socket_is_taken_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with channel(path):
        assert await plugin_hello(path) is not None


def test_the_engine_never_waits_for_a_listener_that_does_not_read(path: Path) -> None:
    with channel(path) as engine, socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(str(path))
        began = time.monotonic()
        for _ in range(20_000):
            engine.post("l3", change="written", hashes=[PAGE] * 20, state_hashes=[])
        assert time.monotonic() - began < 2
        assert (path.stat().st_mode & 0o777) == 0o600


def test_several_threads_may_post(path: Path) -> None:
    with channel(path, max_queued=100_000) as engine:

        def post_many() -> None:
            for _ in range(500):
                post_state(engine)

        posting = [threading.Thread(target=post_many) for _ in range(4)]
        for thread in posting:
            thread.start()
        for thread in posting:
            thread.join()
        assert engine.dropped == 0


async def test_a_proof_that_does_not_hold_names_the_hook(path: Path) -> None:
    made = Channel(str(path), lambda: {**greeting(), "hooks": {"a.b": True, "c.d": False}})
    made.start()
    try:
        hello = await plugin_hello(path)
    finally:
        made.close()
    assert hello is not None
    assert hello.missing_hooks == ("c.d",)


async def test_nobody_there_is_no_proof(path: Path) -> None:
    assert await plugin_hello(path) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b'{"seq":1}',
        b'{"seq":1,"type":"hello","version":2}',
        b'{"seq":1,"type":"state","change":"flown","tier":"d","hash":"a","tokens":1,"tiers":"d"}',
        b'{"seq":1,"type":"state","change":"stored","tier":"x","hash":"a","tokens":1,"tiers":"d"}',
        b'{"seq":1,"type":"states","states":[["a",1]]}',
        b"\xff",
    ],
)
def test_odd_lines_are_told_as_such(line: bytes) -> None:
    with pytest.raises(Unreadable):
        read_line(line)


def test_a_digest_leads_to_the_name_in_kv_events() -> None:
    assert short_hash("00" * 32) == 0
    assert short_hash("ff" * 32) == -1
    assert short_hash("7f" + "ff" * 31) == 0x7FFFFFFFFFFFFFFF

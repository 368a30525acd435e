"""What SGLang's feeds tell, by the plugin's own sender and a publisher's socket, and what is known from it."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor.gateway.sglang_cache import CachePlaces, Lister, SglangCache
from governor.residency.blocks import L1_KV, L2_KV, L2_STATE, L3_KV, L3_STATE, Blocks, Tier
from governor.residency.ledger import Sizes
from serve.sglang_feed.events import short_hash
from serve.sglang_plugin.engine_path.governor_sglang_plugin.channel import Channel
from serve.twin_server.kv_events import KvPublisher
from serve.twin_server.kv_recorder import AllBlocksCleared, BlockRemoved, BlockStored
from tests.twin_server import small_machine, twin_server

A, B, C = (letter * 64 for letter in "abc")
SUFFIX = "_tiny-hybrid_0_2"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cache-") as name:  # pytest's folders are too long for a socket
        yield Path(name)


def plugin(folder: Path) -> Channel:
    """As inside an engine."""
    greeting: dict[str, Any] = {"pid": 1, "tree": "t", "page_tokens": 64, "has_states": True, "failures": 0}
    channel = Channel(str(folder / "plugin"), lambda: {**greeting, "hooks": {}, "calls": {}})
    channel.start()
    return channel


@asynccontextmanager
async def listening(folder: Path, **places: Any) -> AsyncIterator[Blocks]:
    list_l3: Lister | None = places.pop("list_l3", None)
    blocks = Blocks()
    cache = SglangCache("http://127.0.0.1:1", CachePlaces(**places), list_l3=list_l3, read_again_s=0.01)
    running = asyncio.create_task(cache.run(blocks))
    try:
        yield blocks
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the feeds have their own tasks and no event for this
            await asyncio.sleep(0.005)


def bits(blocks: Blocks, *pages: str) -> list[int]:
    return list(blocks.places(map(short_hash, pages)))


def file(folder: Path, name: str, size: int = 1) -> None:
    (folder / "l3").mkdir(exist_ok=True)
    (folder / "l3" / name).write_bytes(b"x" * size)


async def test_what_is_on_disk_is_known_from_the_start(folder: Path) -> None:
    for name in (f"{A}{SUFFIX}.bin", f"{A}.mamba{SUFFIX}.bin", f"{B}_tiny-hybrid_1_2.bin", f"{C}{SUFFIX}.bin.tmp", "x"):
        file(folder, name)
    channel = plugin(folder)
    async with listening(folder, plugin_socket=folder / "plugin", l3_folder=folder / "l3") as blocks:
        await until(lambda: blocks.knowledge.l3)
        assert bits(blocks, A, B, C) == [L3_KV | L3_STATE, 0, 0]
        channel.post("l3", change="written", hashes=[B], state_hashes=[])
        channel.post("l3", change="evicted", file=f"{A}.mamba{SUFFIX}")
        await until(lambda: bits(blocks, A, B) == [L3_KV, L3_KV])
        channel.close()
        await until(lambda: not blocks.knowledge.l3)
        assert not blocks.knowledge.states


async def test_what_changes_while_the_folder_is_read_is_right(folder: Path) -> None:
    going = threading.Event()

    def slow() -> list[str]:
        names = [A + SUFFIX, B + SUFFIX]
        going.wait(10)
        return names

    channel = plugin(folder)
    async with listening(folder, plugin_socket=folder / "plugin", list_l3=slow) as blocks:
        await until(lambda: blocks.knowledge.has_states is True)
        channel.post("l3", change="evicted", file=A + SUFFIX)
        channel.post("l3", change="written", hashes=[C], state_hashes=[C])
        await until(lambda: bits(blocks, C) == [L3_KV | L3_STATE])
        assert not blocks.knowledge.l3
        going.set()
        await until(lambda: blocks.knowledge.l3)
        assert bits(blocks, A, B, C) == [0, L3_KV, L3_KV | L3_STATE]
    channel.close()


async def test_a_folder_that_could_not_be_read_is_read_again(folder: Path) -> None:
    reads = 0

    def failing_once() -> list[str]:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise OSError("stale file handle")
        return [A + SUFFIX]

    channel = plugin(folder)
    async with listening(folder, plugin_socket=folder / "plugin", list_l3=failing_once) as blocks:
        await until(lambda: blocks.knowledge.l3)
        assert bits(blocks, A) == [L3_KV]
    channel.close()


async def test_a_folder_is_no_news_while_nobody_tells_how_it_changes(folder: Path) -> None:
    reading, going = threading.Event(), threading.Event()

    def slow() -> list[str]:
        reading.set()
        going.wait(10)
        return [A + SUFFIX]

    channel = plugin(folder)
    blocks = Blocks()
    cache = SglangCache("http://127.0.0.1:1", CachePlaces(plugin_socket=folder / "plugin"), list_l3=slow)
    running = asyncio.create_task(cache.run(blocks))
    await until(lambda: reading.is_set() and blocks.knowledge.states)
    channel.close()
    await until(lambda: not blocks.knowledge.states)
    going.set()
    cache.relist()
    await asyncio.sleep(0.1)
    assert not blocks.knowledge.l3
    channel = plugin(folder)
    await until(lambda: blocks.knowledge.l3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    channel.close()


async def test_l3_in_an_engine_s_memory_is_known_to_who_has_heard_all(folder: Path) -> None:
    first = plugin(folder)
    async with listening(folder, plugin_socket=folder / "plugin") as blocks:
        await until(lambda: blocks.knowledge.l3)
        first.post("l3", change="written", hashes=[A], state_hashes=[])
        first.post("state", change="loaded", tier="h", hash=B, tokens=64, tiers="h")
        await until(lambda: bits(blocks, A, B) == [L3_KV, L2_STATE])
        async with listening(folder, plugin_socket=folder / "plugin") as late:
            await until(lambda: late.knowledge.states)
            assert bits(late, B) == [L2_STATE]
            assert not late.knowledge.l3
        first.close()
        await until(lambda: not blocks.knowledge.states)
        second = plugin(folder)
        await until(lambda: blocks.knowledge.l3)
        assert bits(blocks, A, B) == [0, 0]
        second.close()


async def test_kv_is_known_while_the_publisher_is_there(folder: Path) -> None:
    places = {"kv_events": f"ipc://{folder}/kv", "kv_replay": f"ipc://{folder}/replay"}
    async with listening(folder, **places) as blocks:
        async with KvPublisher(places["kv_events"], places["kv_replay"]).open() as _:
            pass
        for _ in range(2):
            publisher = KvPublisher(places["kv_events"], places["kv_replay"])
            async with publisher.open():
                publisher.publish([AllBlocksCleared()])
                publisher.publish([stored("GPU", 1, 2), stored("CPU_PINNED", 1), stored("DISK", 2)])
                publisher.publish([BlockRemoved(block_hashes=[1], medium="GPU")])
                await until(lambda: list(blocks.places([1, 2])) == [L2_KV, L1_KV])
                assert blocks.knowledge.kv_whole
            await until(lambda: not blocks.knowledge.kv)
            assert list(blocks.places([1, 2])) == [0, 0]


def stored(medium: str, *pages: int) -> BlockStored:
    return BlockStored(block_hashes=list(pages), token_ids=[1] * 64 * len(pages), block_size=64, medium=medium)


async def test_a_token_s_bytes_are_those_of_all_ranks_files(folder: Path) -> None:
    channel = plugin(folder)
    cache = SglangCache("http://127.0.0.1:1", CachePlaces(plugin_socket=folder / "plugin", l3_folder=folder / "l3"))
    blocks = Blocks()
    running = asyncio.create_task(cache.run(blocks))
    await until(lambda: blocks.knowledge.l3)
    assert await cache.sizes(64) == Sizes()
    file(folder, f"{A}{SUFFIX}.bin", size=640)
    assert await cache.sizes(64) == Sizes(token_bytes=20.0)
    file(folder, f"{A}.mamba{SUFFIX}.bin", size=7)
    assert await cache.sizes(64) == Sizes(token_bytes=20.0, state_bytes=14)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    channel.close()


async def test_what_a_ready_engine_says_of_itself() -> None:
    """Without feeds: pages, states and sizes are known, what is where is not."""
    async with twin_server(small_machine()) as twin:
        cache, blocks = SglangCache(twin.url, CachePlaces()), Blocks()
        capacities = await cache.learn(blocks)
    assert (blocks.knowledge.page_tokens, blocks.knowledge.has_states, blocks.knowledge.tells_depth) == (
        64,
        True,
        False,
    )
    assert [capacities[tier].tokens for tier in Tier] == [8192, 16384, None]
    assert [capacities[tier].state_slots for tier in Tier] == [32, 64, None]
    async with twin_server(small_machine(tiers={"device_slots": 0, "host_slots": 0, "storage_tokens": 0})) as dense:
        cache, blocks = SglangCache(dense.url, CachePlaces()), Blocks()
        capacities = await cache.learn(blocks)
    assert (blocks.knowledge.has_states, blocks.knowledge.l3, capacities[Tier.L3].tokens) == (False, True, 0)

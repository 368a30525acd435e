"""The KV-event consumer against a real publisher that loses, replays, forgets and is started anew."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from serve.sglang_feed import FeedEvent, KvCleared, KvFeed, KvReset, KvStored


class Publishing:
    """The publisher program."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.publish = f"ipc://{folder}/events"
        self.replay = f"ipc://{folder}/replay"
        self._keep = keep
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        argv = ("-m", "tests.kv_publisher", self.publish, self.replay, str(self._keep))
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdin=pipe, stdout=pipe)

    async def tell(self, command: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n".encode())
        assert await self._process.stdout.readline() == b"ok\n"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Heard:
    """What the feed has told. ``pages`` is what a listener would hold to be there."""

    def __init__(self) -> None:
        self.events: list[FeedEvent] = []
        self.pages: list[int] = []
        self.resets: list[str] = []

    def __call__(self, event: FeedEvent) -> None:
        self.events.append(event)
        match event:
            case KvReset(reason=reason):
                self.resets.append(reason)
                self.pages.clear()
            case KvCleared():
                self.pages.clear()
            case KvStored(hashes=hashes):
                self.pages.extend(hashes)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - the feed has its own task and no event for this
                await asyncio.sleep(0.01)


@asynccontextmanager
async def fed(keep: int = 1000, *, replay: bool = True, before: str = "") -> AsyncIterator[tuple[Publishing, Heard]]:
    """``before`` is told to the publisher ahead of the feed's start."""
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:  # pytest's folders are too long for a socket
        publishing, heard = Publishing(Path(folder), keep), Heard()
        await publishing.start()
        if before:
            await publishing.tell(before)
        feed = KvFeed(publishing.publish, publishing.replay if replay else None, heard)
        running = asyncio.create_task(feed.run())
        try:
            await heard.until(lambda: bool(heard.resets))
            yield publishing, heard
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await publishing.kill()


async def settled(publishing: Publishing, heard: Heard, number: int) -> None:
    """Send until batch ``number`` is heard: a subscription takes effect a moment after the connection."""
    await publishing.tell("send 1")
    await heard.until(lambda: number in heard.pages)


async def test_what_came_before_the_listener_is_told_first() -> None:
    async with fed(before="send 5") as (publishing, heard):
        await heard.until(lambda: heard.pages == [0, 1, 2, 3, 4])
        await publishing.tell("send 3")
        await publishing.tell("send 1")
        await heard.until(lambda: heard.pages == list(range(9)))
        assert len(heard.resets) == 1
        stored = heard.events[-1]
        assert isinstance(stored, KvStored)
        assert (stored.page_tokens, len(stored.token_ids), stored.parent) == (64, 64, None)


async def test_a_gap_is_filled_by_replay_and_nothing_is_told_twice() -> None:
    async with fed(before="send 2") as (publishing, heard):
        await settled(publishing, heard, 2)
        await publishing.tell("lose 4")
        await publishing.tell("send 2")
        await heard.until(lambda: heard.pages == list(range(9)))
        assert len(heard.resets) == 1


async def test_a_gap_that_cannot_be_filled_is_a_reset() -> None:
    async with fed(before="send 2") as (publishing, heard):
        await settled(publishing, heard, 2)
        await publishing.tell("lose 3")
        await publishing.tell("forget")
        await publishing.tell("send 2")
        await heard.until(lambda: heard.pages == [6, 7])
        assert heard.resets[1:] == ["batches 3 to 5 are lost"]


async def test_a_replay_with_a_hole_at_its_start_is_a_reset() -> None:
    async with fed(keep=3, before="send 10") as (_, heard):
        await heard.until(lambda: heard.pages == [7, 8, 9])
        assert heard.resets[-1] == "batches 0 to 6 are lost"


async def test_without_replay_a_gap_is_a_reset() -> None:
    async with fed(replay=False) as (publishing, heard):
        async with asyncio.timeout(20):
            while not heard.pages:
                await publishing.tell("send 1")
                await asyncio.sleep(0.02)
        last = heard.pages[-1]
        await heard.until(lambda: heard.pages[-1] >= last)
        await publishing.tell("lose 2")
        await publishing.tell("send 1")
        await heard.until(lambda: heard.resets[-1].endswith("are lost") and len(heard.pages) == 1)


async def test_a_new_engine_is_noticed_and_read_from_its_start() -> None:
    async with fed(before="send 6") as (publishing, heard):
        await heard.until(lambda: heard.pages == list(range(6)))
        await publishing.kill()
        await publishing.start()
        await publishing.tell("send 8")
        await heard.until(lambda: len(heard.resets) == 2 and heard.pages == list(range(8)))


async def test_everything_forgotten_is_told_in_its_place() -> None:
    async with fed(before="send 3") as (publishing, heard):
        await settled(publishing, heard, 3)
        await publishing.tell("clear")
        await publishing.tell("send 1")
        await heard.until(lambda: heard.pages == [5])
        assert sum(isinstance(event, KvCleared) for event in heard.events) == 1


async def test_a_batch_that_cannot_be_read_is_a_reset_and_not_the_end() -> None:
    async with fed(before="send 2") as (publishing, heard):
        await settled(publishing, heard, 2)
        await publishing.tell("odd")
        await publishing.tell("send 1")
        await heard.until(lambda: 4 in heard.pages)
        assert any("odd batch" in reason for reason in heard.resets)


async def test_a_loss_before_a_silence_is_made_good() -> None:
    """No later batch shows the gap."""
    async with fed() as (publishing, heard):
        await settled(publishing, heard, 0)
        await publishing.tell("lose 3")
        await heard.until(lambda: heard.pages == [0, 1, 2, 3])
        assert len(heard.resets) == 1


@pytest.mark.parametrize("count", [3000])
async def test_a_burst_arrives_whole(count: int) -> None:
    async with fed(keep=10_000, before="send 1") as (publishing, heard):
        await publishing.tell(f"send {count}")
        await publishing.tell("send 1")
        await heard.until(lambda: len(heard.pages) == count + 2)
        assert heard.pages == list(range(count + 2))

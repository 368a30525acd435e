"""Listens to the plugin's socket, for as long as the engine may come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from serve.sglang_feed.events import FeedEvent, PluginHello, PluginLost
from serve.sglang_feed.messages import Unreadable, read_line

_LONGEST_LINE = 64 * 1024 * 1024
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


class PluginFeed:
    """Calls ``sink`` with events in order. After a gap or a restart the plugin tells all states anew."""

    def __init__(self, path: Path, sink: Callable[[FeedEvent], None]) -> None:
        self._path = path
        self._sink = sink

    async def run(self) -> None:
        """Until cancelled. What ``sink`` raises ends it."""
        pause = _FIRST_PAUSE_S
        while True:
            reason, was_greeted = await self._listen()
            if was_greeted:
                pause = _FIRST_PAUSE_S
                self._sink(PluginLost(reason))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _listen(self) -> tuple[str, bool]:
        """One connection, to its end: why it ended, and whether the plugin had told anything."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=_LONGEST_LINE)
        except OSError as error:
            return f"no plugin listens: {error}", False
        greeted = False
        try:
            expected: int | None = None
            while line := await reader.readline():
                sequence, event = read_line(line)
                is_opening = sequence == (expected or 1) - 1  # greeting and states carry the last number before them
                if expected is not None and sequence != expected and not is_opening:
                    return f"messages {expected} to {sequence - 1} were lost", greeted
                expected = sequence + 1
                if event is not None:
                    greeted = True
                    self._sink(event)
            return "the engine closed the connection", greeted
        except (OSError, ValueError, Unreadable) as error:
            return str(error), greeted
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def plugin_hello(path: Path, patience_s: float = 5.0) -> PluginHello | None:
    """What the plugin says of itself: the proof that its hooks are in place, or ``None`` when it does not answer."""
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LONGEST_LINE)
            try:
                _, event = read_line(await reader.readline())
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError, Unreadable):
        return None
    return event if isinstance(event, PluginHello) else None

"""A dashboard without a terminal: its screen as text, and the pictures of it that are kept.

``python -m tests.tui.screens`` draws the kept ones anew; look at the difference before keeping it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from governor.events import EventLog
from governor.snapshot import Snapshot
from tests.tui import pictures
from tests.tui.pages import Pages, serving
from tui.app import Dashboard
from tui.client import ClientTimes

KEPT = Path(__file__).parent / "data"
SIZES = ((80, 24), (160, 50))
NAMES = ("empty", "busy", "hostile")
QUICK = ClientTimes(refresh_busy_s=0.02, refresh_quiet_s=0.05, first_retry_s=0.02, longest_retry_s=0.1)


def lines_of(app: Dashboard) -> list[str]:
    """The screen as it would stand in the terminal, line by line."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


async def until(pilot: Pilot[None], condition: Callable[[], bool], within_s: float = 10) -> None:
    """Wait for what the worker and the timer bring. Raises ``TimeoutError``."""
    async with asyncio.timeout(within_s):
        while not condition():
            await pilot.pause(0.02)


@asynccontextmanager
async def shown(
    snapshot: Snapshot, size: tuple[int, int], event_log: EventLog | None = None
) -> AsyncIterator[tuple[Dashboard, Pilot[None], Pages]]:
    """A dashboard of this size that has drawn the snapshot; its clock stands still."""
    async with serving(snapshot, event_log) as pages:
        app = Dashboard(pages.find, now=lambda: pictures.NOW, client_times=QUICK)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: any(line.startswith("turn log") for line in lines_of(app)))
            yield app, pilot, pages


async def drawn(name: str, size: tuple[int, int]) -> str:
    """A kept picture's screen, drawn now."""
    event_log = EventLog()
    snapshot = {"empty": pictures.snapshot(), "busy": pictures.busy(), "hostile": pictures.hostile("\x1b[31m[/] 温")}
    happened = {"empty": (), "busy": pictures.happened(), "hostile": pictures.hostile_events("[@click=app.quit]\x07")}
    for event in happened[name]:
        event_log.publish(event)
    async with shown(snapshot[name], size, event_log) as (app, pilot, _):
        await until(pilot, lambda: len(app.picture.log) == len(happened[name]))
        await pilot.pause(0.6)
        return "\n".join(lines_of(app)) + "\n"


def kept(name: str, size: tuple[int, int]) -> Path:
    return KEPT / f"{name}-{size[0]}x{size[1]}.txt"


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    for name in NAMES:
        for size in SIZES:
            kept(name, size).write_text(asyncio.run(drawn(name, size)))


if __name__ == "__main__":
    main()

"""A dashboard without a terminal: its screens as text, and the pictures of them that are kept.

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
from tests.tui.pictures import Scene
from tui.app import Dashboard
from tui.client import ClientTimes

KEPT = Path(__file__).parent / "data"
SIZES = ((80, 24), (120, 40), (200, 60))
NAMES = ("empty", "normal", "hostile", "many")
SCREENS = ("overview", "agents", "queue", "engine", "log")
QUICK = ClientTimes(refresh_busy_s=0.1, refresh_quiet_s=0.2, first_retry_s=0.02, longest_retry_s=0.1)
_DRAWN_S = 0.3


def lines_of(app: Dashboard) -> list[str]:
    """The screen as it would stand in the terminal, line by line."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def text_of(app: Dashboard) -> str:
    return "\n".join(lines_of(app)) + "\n"


async def until(pilot: Pilot[None], condition: Callable[[], bool], within_s: float = 10) -> None:
    """Wait for what the workers and the timer bring. Raises ``TimeoutError``."""
    async with asyncio.timeout(within_s):
        while not condition():
            await pilot.pause(0.02)


@asynccontextmanager
async def shown(
    scene: Scene | Snapshot, size: tuple[int, int], event_log: EventLog | None = None
) -> AsyncIterator[tuple[Dashboard, Pilot[None], Pages]]:
    """A dashboard of this size that has drawn the scene; its clock stands still."""
    chosen = scene if isinstance(scene, Scene) else Scene(snapshot=scene)
    event_log = event_log or EventLog()
    for event in chosen.happened:
        event_log.publish(event)
    async with serving(chosen.snapshot, event_log) as pages:
        pages.context, pages.policy, pages.engine_log = chosen.context, chosen.policy, chosen.engine_log
        app = Dashboard(pages.find, now=lambda: pictures.NOW, client_times=QUICK)
        async with app.run_test(size=size) as pilot:
            kept = len([event for event in chosen.happened if not hasattr(event, "verdict")])
            await until(pilot, lambda: app.picture.snapshot is not None and len(app.picture.log) == kept)
            await pilot.pause(_DRAWN_S)
            yield app, pilot, pages


async def drawn(name: str, size: tuple[int, int]) -> str:
    """All screens of a kept scene, drawn now, one under the other."""
    scene = pictures.scenes()[name]
    parts = list[str]()
    async with shown(scene, size) as (app, pilot, _):
        for number, screen in enumerate(SCREENS, 1):
            await pilot.press(str(number))
            if screen == "engine":
                await until(pilot, lambda: app.picture.engine_log is not None)
                await pilot.pause(_DRAWN_S)
            await pilot.pause()
            parts.append(f"== {screen}\n{text_of(app)}")
        if scene.snapshot.agents:
            await pilot.press("2", "enter")
            await until(pilot, lambda: app.picture.policy is not None or "policy" in app.picture.missing)
            await until(pilot, lambda: app.picture.context is not None or "context" in app.picture.missing)
            await pilot.pause(_DRAWN_S)
            parts.append(f"== agent\n{text_of(app)}")
        await pilot.press("5", "d")
        await pilot.pause()
        parts.append(f"== decisions\n{text_of(app)}")
    return "".join(parts)


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

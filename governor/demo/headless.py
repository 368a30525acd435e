"""The demo without a dashboard: each mode for some seconds, then the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from governor.demo.figures import Mode, RunFigures, duration_text
from governor.demo.show import running_show
from governor.simulate.incident import SMALL


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen."""

    speed: float
    machine: str
    small_agent: str = SMALL
    runs: tuple[RunFigures, ...]
    """In the order in which they were made. Their seconds are the twin's."""


async def measured(modes: Sequence[Mode], seconds: float, *, speed: float, machine: str) -> DemoReport:
    """Run each mode for ``seconds`` of the wall, from the moment its agents begin. Raises
    :class:`~serve.errors.ServeError`."""
    runs = []
    for mode in modes:
        async with running_show(mode, speed=speed, machine=machine) as show:
            following = asyncio.create_task(show.follow())
            try:
                while show.board.now is None or show.board.now.at_s is None or show.board.now.at_s < seconds * speed:
                    if following.done():
                        await following
                    await asyncio.sleep(0.05)
                runs.append(show.board.now)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
    return DemoReport(speed=speed, machine=machine, runs=tuple(runs))


def sentence(report: DemoReport) -> str:
    """The figure that it is all about."""
    told = {Mode.UNGOVERNED: "without the governor", Mode.GOVERNED: "with it"}
    stalls = []
    for run in report.runs:
        small = run.of(report.small_agent)
        if small is not None:
            stalls.append(f"{duration_text(small.longest_stall_s)} {told[run.mode]}")
    return f"longest stall of the small agent: {', '.join(stalls)}"

"""``governor demo`` in the dashboard: the banner's words, and the life of both programs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from governor import instance
from governor.cli.console import Exit, fail, out
from governor.demo.figures import AgentFigures, Mode, RunFigures, duration_text
from governor.demo.show import Board, Show, running_show
from governor.simulate.incident import SMALL
from serve.errors import ServeError
from tui.cells import Cell, Row, Tone
from tui.client import Address, ClientTimes
from tui.demo import DemoDashboard

_TIMES = ClientTimes(refresh_busy_s=0.5, refresh_quiet_s=1.0, first_retry_s=0.1, longest_retry_s=0.5)
"""A second here is a minute there."""
_MODES = (Mode.UNGOVERNED, Mode.GOVERNED)


def run_demo(mode: Mode, *, speed: float, machine: str, seconds: float | None) -> None:
    """Until it is quit, or ``seconds`` of the wall are over. Raises :class:`~serve.errors.ServeError`."""
    board, problem = asyncio.run(_demo(mode, speed, machine, seconds))
    for line in _last_words(board):
        out.print(line)
    if problem is not None:
        fail(str(problem), Exit.ENGINE)


async def _demo(mode: Mode, speed: float, machine: str, seconds: float | None) -> tuple[Board, ServeError | None]:
    async with running_show(mode, speed=speed, machine=machine) as show:
        app = demo_dashboard(show, mode)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, app.exit)
        following = asyncio.create_task(_followed(show, app.exit))
        ending = None if seconds is None else asyncio.get_running_loop().call_later(seconds, app.exit)
        try:
            await app.run_async()
        finally:
            if ending is not None:
                ending.cancel()
            following.cancel()
            (problem,) = await asyncio.gather(following, return_exceptions=True)
        return show.board, problem if isinstance(problem, ServeError) else None


def demo_dashboard(show: Show, mode: Mode) -> DemoDashboard:
    """The dashboard of a demo that began in this mode."""
    asked = mode

    def find() -> Address | None:
        note = instance.running_instance(show.home)
        return None if note is None else Address(note.url, note.token)

    def switch() -> None:
        nonlocal asked
        asked = asked.other
        show.switch(asked)

    return DemoDashboard(
        find,
        now=show.pace.wall,
        banner=lambda: banner_rows(show.board, asked, show.pace.speed),
        switch=switch,
        client_times=_TIMES,
    )


async def _followed(show: Show, on_end: Callable[[], None]) -> None:
    try:
        await show.follow()
    finally:
        on_end()


def banner_rows(board: Board, asked: Mode, speed: float) -> tuple[Row, ...]:
    """Three lines for 80 cells. ``asked``: the mode that was asked for last."""
    run = board.now
    is_coming = run is None or run.mode is not asked or run.at_s is None
    since = "starting" if is_coming or run is None else duration_text(run.at_s or 0.0)
    governed = asked is Mode.GOVERNED
    head = (
        Cell("demo", Tone.STRONG),
        Cell(f"twin of two 7900 XTX, x{speed:g}", Tone.DIM),
        Cell("GOVERNED" if governed else "UNGOVERNED", Tone.GOOD if governed else Tone.BAD),
        Cell(since, Tone.STRONG),
        Cell(f"g: {'without' if governed else 'with'} the governor"),
    )
    others = [agent.agent for agent in (run.agents if run is not None else ()) if agent.agent != SMALL]
    return (
        head,
        (Cell(f"{SMALL}'s longest stall:"), *(_stall(board, mode) for mode in _MODES)),
        (Cell("others, without / with it:", Tone.DIM), *(_other(board, agent) for agent in others)),
    )


def _stall(board: Board, mode: Mode) -> Cell:
    words = "without" if mode is Mode.UNGOVERNED else "with the governor"
    small = _of(board.last.get(mode), SMALL)
    if small is None:
        return Cell(f"- {words}", Tone.DIM)
    stands = board.now is not None and board.now.mode is mode and (small.silent_s or 0.0) >= small.longest_stall_s > 0
    text = f"{duration_text(small.longest_stall_s)} {words}{' and counting' if stands else ''}"
    return Cell(text, Tone.BAD if small.longest_stall_s >= 120 else Tone.GOOD)


def _other(board: Board, agent: str) -> Cell:
    stalls = [_of(board.last.get(mode), agent) for mode in _MODES]
    told = ["-" if each is None else duration_text(_longest(each)) for each in stalls]
    return Cell(f"{agent} {' / '.join(told)}", Tone.DIM)


def _longest(agent: AgentFigures) -> float:
    return max(agent.first_stall_s, agent.longest_stall_s)


def _of(run: RunFigures | None, agent: str) -> AgentFigures | None:
    return None if run is None else run.of(agent)


def _last_words(board: Board) -> list[str]:
    stalls = [(mode, _of(board.last.get(mode), SMALL)) for mode in _MODES]
    told = [
        f"{duration_text(small.longest_stall_s)} {'without' if mode is Mode.UNGOVERNED else 'with'} the governor"
        for mode, small in stalls
        if small is not None and small.turns
    ]
    return [f"longest stall of the small agent: {', '.join(told)}"] if told else []

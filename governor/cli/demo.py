"""``governor demo``: its options. The work is in :mod:`governor.demo`, which is loaded when it is asked for."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Annotated

import typer

from governor.cli.console import Exit, fail, out, plain_table, print_json, shown, told_errors
from governor.cli.options import JsonOption
from governor.demo.figures import AgentFigures, Mode, RunFigures, duration_text
from governor.demo.show import MACHINE, SPEED

_HEADLESS_S = 90.0


def demo(
    mode: Annotated[
        Mode | None, typer.Option(help="Begin so; g switches. With --headless: only this one.", show_default=False)
    ] = None,
    speed: Annotated[float, typer.Option(help="Seconds of the twin in one.")] = SPEED,
    machine: Annotated[str, typer.Option(help="See 'governor twin machines'.")] = MACHINE,
    seconds: Annotated[
        float | None,
        typer.Option(
            help=f"End after so long; with --headless: so long in each mode, {_HEADLESS_S:g} if not given.",
            min=0.1,
            show_default=False,
        ),
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="No dashboard: print what was measured.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Live through the incident that this was made for, with and without the governor. Needs no GPU and no model.

    \b
    A twin of two RX 7900 XTX serves four agents: one writes 70,000 tokens in one answer, one
    compacts 140K in vain, one has no cap, and a small one stands still. Press g to govern them.

    \b
    governor demo                              in the dashboard
    governor demo --headless --json            both modes, an hour of the twin's each
    """
    if not (math.isfinite(speed) and speed > 0):
        fail(f"--speed {speed:g}: give a number above 0", Exit.USAGE)
    with told_errors():
        if headless or as_json:
            _headless([mode] if mode else [Mode.UNGOVERNED, Mode.GOVERNED], seconds, speed, machine, as_json)
            return
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            fail("this is for a terminal; for scripts there is 'governor demo --headless --json'", Exit.USAGE)
        from governor.cli.demo_screen import run_demo  # noqa: PLC0415 - only this needs Textual

        run_demo(mode or Mode.UNGOVERNED, speed=speed, machine=machine, seconds=seconds)


def _headless(modes: list[Mode], seconds: float | None, speed: float, machine: str, as_json: bool) -> None:
    from governor.demo.headless import measured, sentence  # noqa: PLC0415 - other commands do not need it

    report = asyncio.run(measured(modes, seconds or _HEADLESS_S, speed=speed, machine=machine))
    if as_json:
        print_json(report)
        return
    for run in report.runs:
        _print_run(run)
    out.print(sentence(report))


def _print_run(run: RunFigures) -> None:
    out.print(f"[bold]{run.mode.value}[/], {duration_text(run.at_s or 0.0)} of the twin's time")
    heads = ("agent", "turns", "failed", "stall, first turn", "later", "waits since", "compactions", "in vain")
    table = plain_table(*heads)
    for agent in run.agents:
        table.add_row(*_cells(agent))
    out.print(table)
    out.print()


def _cells(agent: AgentFigures) -> list[str]:
    return [
        agent.agent,
        shown(agent.turns),
        shown(agent.failed),
        duration_text(agent.first_stall_s),
        duration_text(agent.longest_stall_s),
        "-" if agent.silent_s is None else duration_text(agent.silent_s),
        shown(agent.compactions),
        shown(agent.vain_compactions),
    ]

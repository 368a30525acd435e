"""``governor replay``: a trace played on the engine's twin, under one policy or several side by side."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from governor.cli.console import Exit, err, fail, out, print_json, told_errors
from governor.cli.options import JsonOption
from governor.cli.trace import load_trace
from governor.simulate.deciding import Policies, read_policies
from governor.simulate.picture import picture
from governor.simulate.plot import PlotUnavailable, plot
from governor.simulate.report import Report, report
from governor.simulate.result import Result
from governor.simulate.simulator import Simulation
from governor.simulate.table import comparison, duration, tables
from serve.errors import ServeError
from serve.twin.machine import Machine, load_machine
from serve.twin.trace import Trace

UNGOVERNED: Final = "no governor"
SHIPPED: Final = "shipped policies"
_SAMPLE_S: Final = 10.0
_REFRESH_PER_S: Final = 4


class Replayed(msgspec.Struct, frozen=True):
    """What ``--json`` prints."""

    runs: tuple[Report, ...]


def replay(
    trace: Annotated[str, typer.Argument(help="A trace's file, or the name of a shipped one: incident.")],
    profile: Annotated[
        str,
        typer.Option("--profile", "-p", metavar="twin:MACHINE", help="The machine; governor twin machines lists them."),
    ],
    policies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Policy files of the agents; the shipped ones if not given.")
    ] = None,
    compare: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Other policies to put beside. May be repeated.")
    ] = None,
    ungoverned: Annotated[
        bool, typer.Option("--ungoverned", help="Put a run beside in which agents ask the engine directly.")
    ] = False,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: a .png, .svg or .pdf.")
    ] = None,
    with_picture: Annotated[
        bool | None,
        typer.Option("--picture/--no-picture", help="Draw it in characters; on a terminal it is, if not told."),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every turn of every run, one JSON object a run.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what generators draw; another one gives another day.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Play a trace on the engine's twin, in virtual time, and say what each agent would have waited for.

    Several runs are compared to the first: without a governor, if asked for, then --policies, then each --compare.

    \b
    governor replay incident -p twin:rx7900xtx --ungoverned
    governor replay day.trace -p twin:rx7900xtx --policies ./policies --compare ./stricter --plot day.png
    """
    played, machine = load_trace(trace), _machine(profile)
    runs = _runs(played, policies, compare or [], ungoverned)
    results = [(name, _play(name, played, machine, given, seed)) for name, given in runs]
    reports = [report(result, name) for name, result in results]
    if rows is not None:
        _write_rows(rows, results)
    if plot_file is not None:
        _plot(results, plot_file)
    if as_json:
        print_json(Replayed(tuple(reports)))
        return
    if with_picture or (with_picture is None and sys.stdout.isatty()):
        _draw(results)
    for each in reports:
        out.print(tables(each))
        out.print()
    if len(reports) > 1:
        out.print(comparison(reports[0], reports[1:]))


def _machine(profile: str) -> Machine:
    from serve.twin_launcher import PROFILE_PREFIX, machine_of  # noqa: PLC0415 - ZeroMQ takes a tenth of a second

    name = machine_of(profile)
    if not name:
        fail(f"--profile {profile}: a replay is of a twin: {PROFILE_PREFIX}MACHINE", Exit.USAGE)
    try:
        return load_machine(name)
    except ServeError as error:
        fail(error.message, Exit.USAGE)


def _runs(
    trace: Trace, policies: Path | None, compare: list[Path], ungoverned: bool
) -> list[tuple[str, Policies | None]]:
    runs: list[tuple[str, Policies | None]] = [(UNGOVERNED, None)] if ungoverned else []
    for folder in (policies, *compare):
        if folder is not None and not folder.is_dir():
            fail(f"{folder} is no folder of policies", Exit.USAGE)
        with told_errors():
            runs.append((SHIPPED if folder is None else str(folder), read_policies(trace, folder)))
    return runs


def _play(name: str, trace: Trace, machine: Machine, policies: Policies | None, seed: int) -> Result:
    simulation = Simulation(trace, machine, policies, seed, _SAMPLE_S)
    on_terminal = sys.stderr.isatty()
    live = Live(_Progress(name, simulation), console=err, refresh_per_second=_REFRESH_PER_S, transient=True)
    with live if on_terminal else nullcontext():
        return simulation.run()


class _Progress:
    """One line that says where a run is; drawn by a thread of its own, which only reads."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        self._name = name
        self._simulation = simulation

    def __rich__(self) -> Text:
        return Text(f"{self._name}: {duration(self._simulation.now)} played")


def _draw(results: list[tuple[str, Result]]) -> None:
    until_s = max(result.ended_s for _, result in results)
    for name, result in results:
        out.print(f"[bold]{escape(name)}[/]")
        out.print(picture(result, min(out.width, 160), until_s))
        out.print()


def _plot(results: list[tuple[str, Result]], file: Path) -> None:
    try:
        plot(results, file)
    except PlotUnavailable as error:
        fail(str(error), Exit.FAILED)
    err.print(f"wrote {escape(str(file))}")


def _write_rows(file: Path, results: list[tuple[str, Result]]) -> None:
    encoder = msgspec.json.Encoder()
    lines = [encoder.encode({"name": name, "result": result}) for name, result in results]
    try:
        file.write_bytes(b"\n".join(lines) + b"\n")
    except OSError as error:
        fail(f"{file} cannot be written ({error.strerror})", Exit.USAGE)

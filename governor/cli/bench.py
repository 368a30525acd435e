"""``governor bench``: measure an engine as the field does, and compare two measurements."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.markup import escape

from governor.cli.bench_engine import connect
from governor.cli.bench_watch import BenchScreen, rich_table
from governor.cli.console import Exit, err, fail, out, plain_table, print_json, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status import the_running, wait_until_ready
from governor.errors import UpstreamError
from governor.measure import Result, read_result, run_suite, write_result
from governor.measure.compare import Comparison, Verdict
from governor.measure.compare import compare as compared
from governor.measure.errors import MeasureFailed, NotComparable
from governor.measure.layout import described, figure, markdown, sheets
from governor.measure.machine import machine_facts
from governor.measure.options import Options, Restart
from governor.measure.plot import PlotUnavailable, plots
from governor.measure.suites import SUITES, Suite
from governor.measure.target import Target
from governor.settings import Home, Secret
from serve.doctor.system import LocalSystem

RESULT, REPORT = "result.json", "report.md"
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1", ""})
_RESTART_LIMIT_S = 1800.0
_RESTART_POLL_S = 1.0
_COLOURS = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.DIFFERENT: "yellow"}

app = typer.Typer(
    no_args_is_help=True,
    help="Measure an engine: the tables that people publish, right, with the evidence. docs/bench-protocol.md.",
)


def _numbers(text: str) -> tuple[int, ...]:
    """``4096,64k``: with commas between; k is 1,024."""
    found = []
    for part in text.split(","):
        cleaned = part.strip().lower()
        factor = 1024 if cleaned.endswith("k") else 1
        try:
            number = int(cleaned.removesuffix("k")) * factor
        except ValueError as error:
            raise typer.BadParameter(f"{part!r}: give numbers with commas between, as 4096,64k") from error
        if number < 1:
            raise typer.BadParameter(f"{part!r}: give 1 or more")
        found.append(number)
    return tuple(found)


def _command(suite: Suite) -> Callable[..., None]:
    def run(
        home: HomeOption,
        engine: Annotated[
            str | None,
            typer.Option(metavar="URL", help="What to measure; the running governor's, if not given."),
        ] = None,
        out_folder: Annotated[
            Path | None, typer.Option("--out", metavar="DIR", help="Where result.json, report.md and plots go.")
        ] = None,
        contexts: Annotated[
            str | None,
            typer.Option(metavar="N,N", help="Tokens of a prompt, as 4096,64k."),
        ] = None,
        requests: Annotated[str | None, typer.Option(metavar="N,N", help="How many at once, as 1,2,4.")] = None,
        output: Annotated[int | None, typer.Option(min=2, help="Tokens of an answer.")] = None,
        repeats: Annotated[int, typer.Option(min=1, help="Of each case.")] = 3,
        seed: Annotated[
            str | None, typer.Option(help="Makes the same prompts again; an engine has them cached the second time.")
        ] = None,
        minutes: Annotated[float, typer.Option(min=0.01, help="Of a soak.")] = 2.0,
        pid: Annotated[list[int] | None, typer.Option(help="Process whose memory a soak watches.")] = None,
        restart: Annotated[
            str | None, typer.Option(metavar="COMMAND", help="Restarts the engine, for L3 after a restart.")
        ] = None,
        model: Annotated[str | None, typer.Option(help="Where the engine serves several.")] = None,
        key_env: Annotated[
            str, typer.Option(help="Environment variable that holds the engine's API key.")
        ] = "GOVERNOR_UPSTREAM_KEY",
        plot: Annotated[str, typer.Option(help="png, svg, pdf, or none.")] = "png",
        as_json: JsonOption = False,
    ) -> None:
        with told_errors():
            url = engine or _engine_of(home)
        key = os.environ.get(key_env)
        options = Options(
            contexts=_numbers(contexts) if contexts else None,
            requests=_numbers(requests) if requests else None,
            output_tokens=output,
            minutes=minutes,
            pids=tuple(pid or ()),
        )
        folder = out_folder or Path(f"bench-{suite.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"{folder} cannot be made ({error.strerror}); give another --out", Exit.USAGE)
        measure = _measure(url, Secret(key) if key else None, model, suite, options, repeats, seed, restart, folder)
        try:
            result = asyncio.run(measure)
        except UpstreamError as error:
            fail(error.message, Exit.ENGINE)
        except MeasureFailed as error:
            fail(str(error), Exit.ENGINE)
        except KeyboardInterrupt:
            fail(f"interrupted; what there was is in {folder / RESULT}")
        _keep(result, folder)
        _plot(result, folder, plot)
        if as_json:
            print_json(result)
            return
        _print(result)
        out.print(f"\n{escape(str(folder / RESULT))}, {escape(str(folder / REPORT))}", soft_wrap=True)

    return run


for _suite in SUITES.values():
    app.command(_suite.name, help=f"{_suite.summary[0].upper()}{_suite.summary[1:]}.")(_command(_suite))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A result.json, or its folder: what to hold against.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Although they are not of the same thing; the differences are told.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two results: ratios of the medians, their 95 % intervals, and whether the difference is more than chance.

    \b
    Exit code: 0 compared, 2 they are not comparable, or a file is none.
    governor bench compare before/ after/
    """
    try:
        comparison = compared(_read(first), _read(second), anyway=anyway)
    except NotComparable as error:
        err.print("[bold red]error:[/] the two are not comparable:")
        for reason in error.reasons:
            err.print(f"  * {escape(reason)}")
        err.print("--anyway compares them nevertheless.")
        raise SystemExit(int(Exit.USAGE)) from error
    except MeasureFailed as error:
        fail(str(error), Exit.USAGE)
    if as_json:
        print_json(comparison)
        return
    _print_comparison(comparison)


def _read(place: Path) -> Result:
    return read_result(place / RESULT if place.is_dir() else place)


def _engine_of(home: Home) -> str:
    note = the_running(home)
    if note.engine_url is None:
        fail("the running governor does not say where its engine is; give --engine", Exit.USAGE)
    wait_until_ready(note)
    return note.engine_url


async def _measure(
    url: str,
    key: Secret | None,
    model: str | None,
    suite: Suite,
    options: Options,
    repeats: int,
    seed: str | None,
    restart: str | None,
    folder: Path,
) -> Result:
    target = await connect(url, key=key, model=model)
    machine = machine_facts(LocalSystem(), engine_is_local=(urlsplit(url).hostname or "") in _LOCAL)
    if restart is not None:
        options = msgspec.structs.replace(options, restart=_restart(target, shlex.split(restart)))
    try:
        with BenchScreen(err, suite.name) as screen:
            return await run_suite(
                target,
                suite.name,
                machine=machine,
                governor_version=version("agent-governor"),
                seed=seed or secrets.token_hex(6),
                repeats=repeats,
                options=options,
                watcher=screen,
                on_interrupted=lambda result: _keep(result, folder),
            )
    finally:
        await target.aclose()


def _restart(target: Target, command: list[str]) -> Restart:
    async def restart() -> None:
        process = await asyncio.create_subprocess_exec(*command)
        code = await process.wait()
        if code != 0:
            raise UpstreamError(f"the restart's command ended with {code}")
        async with asyncio.timeout(_RESTART_LIMIT_S):
            while not await target.is_ready():  # noqa: ASYNC110 - nobody tells when it is
                await asyncio.sleep(_RESTART_POLL_S)

    return restart


def _keep(result: Result, folder: Path) -> None:
    try:
        write_result(result, folder / RESULT)
        (folder / REPORT).write_text(markdown(result), "utf-8")
    except OSError as error:
        fail(f"{folder} cannot be written ({error.strerror}); give another --out", Exit.USAGE)


def _plot(result: Result, folder: Path, kind: str) -> None:
    if kind == "none":
        return
    try:
        plots(result, folder, f".{kind}")
    except PlotUnavailable as error:
        err.print(f"no plots: {escape(str(error))}")


def _print(result: Result) -> None:
    for sheet in sheets(result.suite, result.measures):
        out.print(rich_table(sheet))
        out.print()
    for title, left in (("thrown out", result.thrown), ("not measured", result.skipped)):
        for each in left:
            out.print(f"[yellow]{title}[/] {escape(each.what)}: {escape(each.reason)}", soft_wrap=True)
    for note in result.notes:
        out.print(f"[dim]note: {escape(note)}[/]", soft_wrap=True)
    out.print(f"[dim]{escape(described(result))}[/]", soft_wrap=True)


def _print_comparison(comparison: Comparison) -> None:
    for reason in comparison.differences:
        out.print(f"[yellow]not the same:[/] {escape(reason)}", soft_wrap=True)
    table = plain_table("case", "metric", "first", "second", "ratio", "95 %", "p", "second is")
    for column in table.columns[2:7]:
        column.justify = "right"
    for row in comparison.rows:
        colour = _COLOURS.get(row.verdict)
        verdict = f"[{colour}]{row.verdict}[/]" if colour else row.verdict.value
        table.add_row(
            escape(str(row.case)),
            row.metric.value,
            figure(row.ours),
            figure(row.theirs),
            f"{row.ratio:.3f}",
            f"{row.low:.3f} to {row.high:.3f}",
            f"{row.p:.3f}",
            verdict,
        )
    out.print(table)
    for only in comparison.only_one:
        out.print(f"[dim]only in one: {escape(only)}[/]", soft_wrap=True)

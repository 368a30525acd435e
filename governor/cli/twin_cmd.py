"""``governor twin``: the machines that the engine's twin can be, and fitting one from measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from governor.cli.console import Exit, fail, out, plain_table, print_json, shown
from governor.cli.options import JsonOption
from governor.measure import read_result
from governor.measure.errors import MeasureFailed
from governor.measure.to_twin import measured_from
from serve.errors import ServeError
from serve.twin.fit import fit
from serve.twin.machine import SUFFIX, Machine, load_machine, machine_names, machine_toml
from serve.twin.measured import MachineName, Measured, read_measured

BAD_ERROR = 0.1
"""Relative: a residual beyond this is marked."""

app = typer.Typer(no_args_is_help=True, help="The engine's twin: which machines it can be, and fitting one of yours.")


@app.command("fit")
def fit_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Measurements of one machine, TOML or JSON; or results of governor bench."
        ),
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Over the file's name for the machine.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write it; NAME.toml here, if not given."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a machine from measurements, print how far each row is off, and write the machine's file.

    \b
    governor bench fit --out my-box
    governor twin fit my-box/result.json --name my-box
    governor up --profile twin:./my-box.toml
    """
    try:
        measured = _read(files)
        if name is not None:
            measured = msgspec.structs.replace(measured, name=msgspec.convert(name, MachineName))
        machine = fit(measured)
    except msgspec.ValidationError:
        fail(f"--name {name}: give small letters, digits, and . _ - between them", Exit.USAGE)
    except ServeError as error:
        fail(error.message, Exit.USAGE)
    except MeasureFailed as error:
        fail(str(error), Exit.USAGE)
    target = output or Path(machine.name + SUFFIX)
    _write(machine, target, files, may_replace=output is not None)
    if as_json:
        print_json(machine)
        return
    _print_residuals(machine)
    _print_assumed(machine)
    out.print(f"\nwrote {escape(str(target))}; use it as --profile twin:{escape(_as_argument(target))}")


@app.command()
def machines(as_json: JsonOption = False) -> None:
    """List the machines that are shipped."""
    found = [_loaded(name) for name in machine_names()]
    if as_json:
        print_json([{"name": machine.name, "summary": machine.summary} for machine in found])
        return
    table = plain_table("machine", "L1 tokens", "L2 tokens", "worst row", "what it is")
    for machine in found:
        tiers = machine.engine.tiers
        worst = max((abs(each.error) for each in machine.residuals), default=None)
        table.add_row(
            machine.name,
            shown(tiers.device_tokens),
            shown(tiers.host_tokens),
            shown(worst if worst is None else f"{worst:.1%}"),
            escape(machine.summary),
        )
    out.print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A shipped machine, or a file of yours by its path.")],
    as_json: JsonOption = False,
) -> None:
    """Show a machine: its engine, what its work costs, how well that tells what was measured, what was assumed."""
    machine = _loaded(name)
    if as_json:
        print_json(machine)
        return
    out.print(f"[bold]{escape(machine.name)}[/]  {escape(machine.summary)}")
    for source in machine.sources:
        out.print(f"  {escape(source)}")
    for title, values in (("engine", machine.engine), ("tiers", machine.engine.tiers), ("cost", machine.cost)):
        table = plain_table(title, "")
        for field, value in msgspec.structs.asdict(values).items():
            if field != "tiers":
                table.add_row(field, _figure(value))
        out.print()
        out.print(table)
    out.print()
    _print_residuals(machine)
    _print_assumed(machine)


def _read(files: list[Path]) -> Measured:
    """One file of measurements, or results of a bench. Raises :class:`ServeError` and :class:`MeasureFailed`."""
    if any(_is_result(file) for file in files):
        return measured_from([read_result(file) for file in files])
    if len(files) > 1:
        raise MeasureFailed("Give one file of measurements; only results of governor bench can be put together.")
    return read_measured(files[0])


def _is_result(file: Path) -> bool:
    try:
        return file.suffix == ".json" and b'"schema_version"' in file.read_bytes()
    except OSError:
        return False


def _loaded(name: str) -> Machine:
    try:
        return load_machine(name)
    except ServeError as error:
        fail(error.message, Exit.USAGE)


def _write(machine: Machine, target: Path, sources: list[Path], *, may_replace: bool) -> None:
    if target.suffix != SUFFIX:
        fail(f"{target}: a machine's file ends in {SUFFIX}; give --out NAME{SUFFIX}", Exit.USAGE)
    if target.exists():
        if target.resolve() in {source.resolve() for source in sources}:
            fail(f"{target} holds the measurements; give another --out", Exit.USAGE)
        if not may_replace:
            fail(f"{target} is there already; replace it with --out {target}, or give another --name", Exit.USAGE)
    try:
        target.write_text(machine_toml(machine), "utf-8")
    except OSError as error:
        fail(f"{target} cannot be written ({error.strerror}); give another --out", Exit.USAGE)


def _figure(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _as_argument(target: Path) -> str:
    return str(target) if target.is_absolute() or len(target.parts) > 1 else f"./{target}"


def _print_residuals(machine: Machine) -> None:
    table = plain_table("row", "measured", "twin", "error")
    for column in table.columns[1:]:
        column.justify = "right"
    for each in machine.residuals:
        colour = "red" if abs(each.error) > BAD_ERROR else "green"
        table.add_row(escape(each.what), f"{each.measured:g}", f"{each.twin:g}", f"[{colour}]{each.error:+.1%}[/]")
    out.print(table)


def _print_assumed(machine: Machine) -> None:
    if machine.assumed:
        out.print("\nassumed, not measured:")
    for text in machine.assumed:
        out.print(f"  * {escape(text)}", soft_wrap=True)

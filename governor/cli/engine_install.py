"""``governor engine install``: put a profile's engine into a virtual environment of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from governor.cli.console import err, out, print_json, told_errors
from governor.cli.options import JsonOption
from serve.install import Command, Installer, InstallRecipe, engines_folder, recipe_for
from serve.install.model import HERE
from serve.install.runner import SubprocessRunner
from serve.profile import load_profile


def install(
    profile: Annotated[str, typer.Option("--profile", "-p", help="A shipped profile, or a file of yours by its path.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the steps and their commands; do nothing.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Look at every step of a finished installation, and mend it.")
    ] = False,
    engines: Annotated[
        Path | None,
        typer.Option(
            envvar="GOVERNOR_ENGINES",
            metavar="DIR",
            help="Where engines live.",
            show_default="engines, in the user's data folder",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Install the engine of a profile. Takes minutes the first time, seconds afterwards; goes on where it broke off.

    \b
    governor engine install --profile sglang-cpu
    governor engine install --profile rx7900xtx-tp2 --dry-run
    """
    with told_errors():
        recipe = recipe_for(load_profile(profile))
        installer = Installer(recipe, engines or engines_folder(), SubprocessRunner(), _say)
        if dry_run:
            if as_json:
                print_json(_as_data(recipe, installer))
            else:
                _print_steps(recipe, installer)
            return
        engine = installer.install(check=check)
    if as_json:
        print_json(engine)
        return
    out.print(f"[bold]{escape(recipe.name)}[/] {engine.version} in {escape(str(engine.folder))}")


def _say(line: str) -> None:
    err.print(escape(line))


def _print_steps(recipe: InstallRecipe, installer: Installer) -> None:
    """``$ENGINE`` and ``$SERVE`` keep the lines short enough to read."""
    engine, serve = str(installer.engine.folder), str(HERE.parent)

    def line(command: Command) -> str:
        argv, env = installer.filled(command)
        words = [*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(argv)]
        return " ".join(words).replace(engine, "$ENGINE").replace(serve, "$SERVE")

    typer.echo(f"{recipe.name}: SGLang {recipe.engine_version}, takes {recipe.disk_gib:g} GiB")
    typer.echo(f"ENGINE={shlex.quote(engine)}\nSERVE={shlex.quote(serve)}")
    for number, step in enumerate(recipe.steps, 1):
        typer.echo(f"\n{number}. {step.title}")
        if step.note:
            typer.echo(f"   {step.note}")
        for command in step.commands:
            typer.echo(f"   $ {line(command)}")
        typer.echo(f"   check: {line(step.check)}")
    if installer.is_complete:
        typer.echo("\nIt is installed: nothing would be done.")


def _as_data(recipe: InstallRecipe, installer: Installer) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "engine_version": recipe.engine_version,
        "folder": str(installer.engine.folder),
        "is_installed": installer.is_complete,
        "steps": [
            {
                "id": step.id,
                "title": step.title,
                "note": step.note,
                "commands": [installer.filled(command)[0] for command in step.commands],
                "check": installer.filled(step.check)[0],
            }
            for step in recipe.steps
        ],
    }

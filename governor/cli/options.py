"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from governor.settings import Home, home


def _parse(value: str) -> Home:
    return Home(Path(value).expanduser().resolve())


HomeOption = Annotated[
    Home,
    typer.Option(
        "--home",
        parser=_parse,
        metavar="DIR",
        envvar="GOVERNOR_HOME",
        help="Where keys, policies and the turn log live.",
        default_factory=lambda: str(home().root),
        show_default="the user's data folder",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
__all__ = ["HomeOption", "JsonOption", "click"]

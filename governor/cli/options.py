"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from governor.settings import Home, home
from serve.profile.tiers import LowerTier


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
WithoutOption = Annotated[
    list[LowerTier] | None,
    typer.Option(
        "--without", help="Run with this cache tier off, whatever the profile says; l2 takes l3 along. May be repeated."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
__all__ = ["HomeOption", "JsonOption", "WithoutOption", "click"]

"""``governor engine systemd`` and ``governor engine retry``: the engine of a governor that runs, or will run."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from governor import instance
from governor.cli.console import Exit, err, fail, out, told_errors
from governor.cli.options import HomeOption
from serve.profile import load_profile
from serve.systemd import governor_unit

RETRY_SIGNAL = signal.SIGUSR1
"""Asks a running governor to start an engine anew that was given up."""


def systemd(
    home: HomeOption,
    profile: Annotated[str, typer.Option("--profile", "-p", help="A shipped profile, or a file of yours by its path.")],
    up: Annotated[str, typer.Option(help="Further options of governor up, as you would type them.")] = "",
) -> None:
    """Print a systemd user unit that runs this governor with the profile's engine. Installs nothing.

    \b
    governor engine systemd --profile rx7900xtx-tp2 > ~/.config/systemd/user/governor.service
    systemctl --user enable --now governor
    """
    with told_errors():
        loaded = load_profile(profile)
    chosen = str(Path(profile).expanduser().absolute()) if profile.endswith(".toml") or "/" in profile else profile
    argv = [sys.executable, "-m", "governor", "up", "--home", str(home.root), "--profile", chosen, *shlex.split(up)]
    # Where engines are is the only setting of ours that has no option of `governor up`.
    environment = {name: os.environ[name] for name in ("GOVERNOR_ENGINES",) if name in os.environ}
    typer.echo(governor_unit(argv, what=f"governor with the engine {loaded.name}", environment=environment), nl=False)
    err.print("so that it runs without you logged in: loginctl enable-linger", style="dim")


def retry(home: HomeOption) -> None:
    """Start an engine again that was given up, with a fresh budget of restarts. One that runs is left alone."""
    with told_errors():
        note = instance.running_instance(home)
        if note is None:
            fail("no governor runs from this home; start one with 'governor up'", Exit.NOT_RUNNING)
        os.kill(note.pid, RETRY_SIGNAL)
        out.print("asked; see 'governor status'")

"""What an installation consists of. Values only: recipes are made, shown and hashed without touching the machine.

Arguments may hold ``{engine}`` (the engine's folder), ``{python}`` (its interpreter), ``{base}`` (the interpreter that
makes the environment), ``{governor}`` (our own) and ``{serve}`` (the package ``serve``), filled in when a command runs.
So a recipe is the same on every machine.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

HERE = Path(__file__).parent

_MINUTE_S = 60.0


class Command(msgspec.Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    cwd: str = "{engine}"
    limit_s: float = 30 * _MINUTE_S
    """No end after this long is a failure."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do and the proof that it is done."""

    id: str
    title: str
    commands: tuple[Command, ...]
    """Run one after another; each must be safe to repeat."""
    check: Command
    """Quick, changes nothing, exits with 0 when the step is done. Run after the commands, and when an installation that
    broke off is taken up again."""
    inputs: tuple[Path, ...] = ()
    """Files of ours that the result depends on. When they change only this step is done anew, not the installation."""
    note: str | None = None
    """What the owner should know before."""

    @property
    def fingerprint(self) -> str:
        return digest([msgspec.json.encode(self.commands), *(path.read_bytes() for path in self.inputs)])


class InstallRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of engine gets onto one kind of machine."""

    name: str
    engine_version: str
    pythons: tuple[str, ...]
    """Versions that its wheels exist for, best first."""
    locks: tuple[Path, ...]
    steps: tuple[Step, ...]
    disk_gib: float
    """What it takes in the end; looked at before it starts."""
    python_path: tuple[Path, ...] = ()
    """Folders for the engine's ``PYTHONPATH``."""
    model: str | None = None
    """Weights that the recipe makes, a path with ``{engine}``."""

    def key(self, python_version: str) -> str:
        """Names the installation: equal keys mean equal environments. ``python_version``: ``3.11``."""
        fixed = [step for step in self.steps if not step.inputs]
        machine = f"{self.name} {sys.platform} {platform.machine()} {python_version}"
        parts = [machine.encode(), *(path.read_bytes() for path in self.locks)]
        return digest([*parts, *(msgspec.json.encode(step.commands) for step in fixed)])[:16]

    @property
    def fingerprint(self) -> str:
        """Of all steps: an installation is complete for exactly this."""
        return digest(step.fingerprint.encode() for step in self.steps)


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of the parts, boundaries included."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.hexdigest()

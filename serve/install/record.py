"""What an engine's folder remembers of its installation: finished steps, and whether all of them are."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from governor.errors import ConfigError
from governor.files import read_text, write_atomic
from serve.install.model import InstallRecipe, Step

_T = TypeVar("_T")


class _Complete(msgspec.Struct, frozen=True, kw_only=True):
    """The marker, written last."""

    recipe: str
    engine_version: str
    fingerprint: str


class Record:
    """Reads and writes the two small files in ``folder``. A file that cannot be understood counts as absent."""

    def __init__(self, folder: Path) -> None:
        self._steps = folder / "steps.json"
        self._marker = folder / ".complete"

    def is_complete(self, recipe: InstallRecipe) -> bool:
        """Whether every step of exactly this recipe is done."""
        marker = _decoded(self._marker, _Complete)
        return marker is not None and marker.fingerprint == recipe.fingerprint

    def finished(self) -> dict[str, str]:
        """Fingerprints of finished steps by id."""
        return _decoded(self._steps, dict[str, str]) or {}

    def remember(self, step: Step) -> None:
        self._write_steps({**self.finished(), step.id: step.fingerprint})

    def forget(self, step: Step) -> None:
        """Before a step is done again: it is not finished, nor is the whole."""
        self._marker.unlink(missing_ok=True)
        self._write_steps({id_: mark for id_, mark in self.finished().items() if id_ != step.id})

    def complete(self, recipe: InstallRecipe) -> None:
        marker = _Complete(recipe=recipe.name, engine_version=recipe.engine_version, fingerprint=recipe.fingerprint)
        write_atomic(self._marker, msgspec.json.encode(marker).decode() + "\n")

    def _write_steps(self, steps: dict[str, str]) -> None:
        write_atomic(self._steps, msgspec.json.format(msgspec.json.encode(steps), indent=1).decode() + "\n")


def _decoded(path: Path, kind: type[_T]) -> _T | None:
    try:
        text = read_text(path)
        return None if text is None else msgspec.json.decode(text, type=kind)
    except (ConfigError, msgspec.MsgspecError):
        return None

"""The machine as the probes see it: small reads that answer ``None`` instead of failing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

COMMAND_TIMEOUT_S = 20.0
"""A driver that hangs must not hang the doctor."""


class System(Protocol):
    """Paths are absolute, as the system itself writes them. No method changes anything or raises."""

    def read(self, path: str) -> str | None:
        """A small text file, without blanks around it; ``None`` if it cannot be read."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """Entries of a folder, sorted; none if it cannot be read."""
        ...

    def real(self, path: str) -> str | None:
        """The path with all links followed; ``None`` if there is nothing."""
        ...

    def can_open(self, path: str) -> bool:
        """Whether this user may read and write it."""
        ...

    def run(self, command: Sequence[str]) -> str | None:
        """Output of a program that ended well; ``None`` otherwise. Blocks for :data:`COMMAND_TIMEOUT_S` at the most."""
        ...


class LocalSystem:
    """This machine; with ``root`` a copy of parts of another's file system."""

    def __init__(self, root: Path = Path("/"), search_path: str | None = None) -> None:
        self._root = root.resolve()
        self._search_path = search_path

    def read(self, path: str) -> str | None:
        try:
            return self._at(path).read_text(errors="replace").strip()
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(entry.name for entry in self._at(path).iterdir()))
        except OSError:
            return ()

    def real(self, path: str) -> str | None:
        try:
            return "/" + str(self._at(path).resolve(strict=True).relative_to(self._root))
        except (OSError, ValueError):
            return None

    def can_open(self, path: str) -> bool:
        return os.access(self._at(path), os.R_OK | os.W_OK)

    def run(self, command: Sequence[str]) -> str | None:
        program = shutil.which(command[0], path=self._search_path)
        if program is None:
            return None
        try:
            done = subprocess.run(
                [program, *command[1:]], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

"""What the last canary found, kept in the home so that the running governor can show it: the command that asks and the
governor are two processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from governor.errors import ConfigError
from governor.files import Signature, read_text, signature, write_atomic
from governor.settings import Home
from governor.snapshot import CanaryView

log = logging.getLogger(__name__)

CanaryReader = Callable[[], CanaryView | None]
"""The last one's result; ``None``: nobody has asked, or it cannot be read. Cheap."""


def note_file(home: Home) -> Path:
    """Outlives the governor, as the result does."""
    return home.root / "canary.json"


def write_canary(home: Home, found: CanaryView) -> None:
    """Raises :class:`~governor.errors.ConfigError`."""
    write_atomic(note_file(home), msgspec.json.encode(found).decode())


class CanaryNote:
    """Reads the file when it has changed."""

    def __init__(self, home: Home) -> None:
        self._path = note_file(home)
        self._seen: Signature | None = None
        self._found: CanaryView | None = None

    def __call__(self) -> CanaryView | None:
        now = signature(self._path)
        if now != self._seen:
            self._seen = now
            self._found = self._read()
        return self._found

    def _read(self) -> CanaryView | None:
        try:
            text = read_text(self._path)
            return None if text is None else msgspec.json.decode(text, type=CanaryView)
        except (ConfigError, msgspec.MsgspecError) as error:
            log.warning("what the last canary found cannot be read: %s", error)
            return None

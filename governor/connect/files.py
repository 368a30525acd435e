"""Reads, backs up and replaces a client's file. The only I/O here; what to write is decided elsewhere."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from governor.errors import ConfigError
from governor.files import read_text, write_atomic


def read(path: Path) -> str:
    """The file's text; empty if there is none. Raises :class:`ConfigError`."""
    return read_text(path) or ""


def is_open_to_others(path: Path) -> bool:
    """Whether other users of the machine may read the file."""
    try:
        return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def ensure_folder(path: Path) -> None:
    """Make the file's folder, and see that a file can be made in it. Raises :class:`ConfigError`."""
    folder = path.resolve().parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError("cannot be written: its folder is not yours to write to", file=str(path))


def back_up(path: Path, text: str, now: float) -> Path:
    """Keep ``text`` beside the file, for its owner only, since it may hold keys. ``now`` is Unix time in seconds.
    Raises :class:`ConfigError`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for attempt in range(1, 100):
        kept = path.with_name(f"{path.name}.bak-{stamp}" + (f"-{attempt}" if attempt > 1 else ""))
        try:
            descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(kept)) from error
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return kept
    raise ConfigError("has a hundred backups of this second", file=str(path))


def replace(path: Path, before: str, after: str) -> None:
    """Write ``after`` if the file still is ``before``; mode and links stay. Raises :class:`ConfigError`."""
    if read(path) != before:
        raise ConfigError("has been changed by another program meanwhile; run the command again", file=str(path))
    write_atomic(path, after)

"""The one running governor of a home: its lock, and the note it leaves for the other commands.

The lock is the kernel's (``flock``), so a killed governor holds nothing; the note (mode 0600) has its address, its pid
and the admin token of this run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from governor.errors import GovernorError
from governor.settings import Home, Secret


class AlreadyRunning(GovernorError):
    """Another governor runs from this home."""

    code = "already_running"


class RunNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the running governor tells the owner's own commands."""

    pid: int
    url: str
    admin_token: str
    started_at: float
    """Unix time in seconds."""
    engine_url: str | None = None
    """Where its engine listens."""

    @property
    def token(self) -> Secret:
        return Secret(self.admin_token)


def _note_path(home: Home) -> Path:
    return home.run / "governor.json"


def _lock_path(home: Home) -> Path:
    return home.run / "governor.lock"


@contextlib.contextmanager
def only_instance(home: Home) -> Iterator[None]:
    """Hold the home's lock. Raises :class:`AlreadyRunning`; of two that start at once one wins."""
    home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_lock_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            note = _read(home)
            where = f" at {note.url} (pid {note.pid})" if note else ""
            raise AlreadyRunning(
                f"A governor runs from {home.root} already{where}. Stop it with 'governor stop', or use another --home."
            ) from error
        yield
    finally:
        os.close(descriptor)


def write_note(home: Home, url: str, started_at: float, token: Secret, engine_url: str | None = None) -> None:
    """Leave the note; replaced as a whole, so that a reader never sees half of one."""
    note = RunNote(pid=os.getpid(), url=url, admin_token=token.reveal(), started_at=started_at, engine_url=engine_url)
    fresh = _note_path(home).with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(note))
    fresh.replace(_note_path(home))


def remove_note(home: Home) -> None:
    _note_path(home).unlink(missing_ok=True)


def running_instance(home: Home) -> RunNote | None:
    """The note of the governor that runs now; ``None`` if none does, whatever an old note says."""
    return _read(home) if _is_locked(home) else None


def new_admin_token() -> Secret:
    return Secret("adm-" + secrets.token_urlsafe(32))


def _is_locked(home: Home) -> bool:
    try:
        descriptor = os.open(_lock_path(home), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read(home: Home) -> RunNote | None:
    try:
        return msgspec.json.decode(_note_path(home).read_bytes(), type=RunNote)
    except (OSError, msgspec.MsgspecError):
        return None

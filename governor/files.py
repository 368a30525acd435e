"""Small text files that people and several processes share: read whole, replaced atomically, locked while edited.

Policy files and the agent book both live by these rules, so they stand under both. Every failure is a
:class:`ConfigError` that names the file.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import msgspec

from governor.errors import ConfigError

MAX_BYTES = 1 << 20
"""A settings file larger than this is a mistake (a link to a device, a log)."""
LOCK_TIMEOUT_S = 10.0
SETTLED_S = 0.1


class Signature(msgspec.Struct, frozen=True):
    """What tells one state of a file from another without reading it."""

    device: int = 0
    inode: int = 0
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    errno: int = 0
    """Set when the file cannot even be looked at."""

    def is_settled(self, wall_s: float) -> bool:
        """Whether any write after ``wall_s`` (Unix time) is sure to change the signature. Two writes within one tick of
        the file system's clock (up to 10 ms before Linux 6.13) that keep inode and size look alike."""
        return wall_s - max(self.mtime_ns, self.ctime_ns) / 1e9 >= SETTLED_S


def signature(path: Path) -> Signature | None:
    """The file's state, links followed; ``None`` if there is no file. One ``stat``; never raises."""
    try:
        at = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Signature(errno=error.errno or 1)
    return Signature(
        device=at.st_dev,
        inode=at.st_ino,
        mode=at.st_mode,
        size=at.st_size,
        mtime_ns=at.st_mtime_ns,
        ctime_ns=at.st_ctime_ns,
    )


def read_text(path: Path, *, owner_writes_only: bool = False) -> str | None:
    """The file as text, without a byte order mark; ``None`` if there is none.

    Raises :class:`ConfigError` when it cannot be read, is no regular file, too large or not UTF-8. A pipe or a device
    is recognised before a read could block. ``owner_writes_only`` refuses a file that other users may write to.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError("is not a regular file", file=str(path))
            if owner_writes_only and mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError("can be written by other users; chmod go-w", file=str(path))
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                data = stream.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES} bytes", file=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", file=str(path), line=line) from error


def write_atomic(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file's content so that every reader sees the old text or the new one, also after a power cut.

    A link stays a link: its target is replaced. ``mode`` defaults to the file's own, 0600 for a new one. Missing
    folders are made for the owner only. Raises :class:`ConfigError`.
    """
    target = path.resolve()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if mode is None:
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
        descriptor, scratch = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(text.encode())
                stream.flush()
                os.fsync(stream.fileno())
            Path(scratch).chmod(mode)
            Path(scratch).replace(target)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from error


@contextmanager
def locked(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the file against other editors, threads and processes alike. The lock is a hidden file beside it, since a
    lock on the file itself would go with the inode that an atomic write replaces.

    Blocks up to ``timeout_s``, then raises :class:`ConfigError`.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = filelock.FileLock(path.with_name(f".{path.name}.lock"), mode=0o600)
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout as error:
        raise ConfigError(f"is held by another program for more than {timeout_s:g} s", file=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be locked: {error.strerror}", file=str(path)) from error
    try:
        yield
    finally:
        lock.release()

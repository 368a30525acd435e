"""Installs real clients once a machine, in the user's cache folder, from the lock files beside the tests.

A folder is named after the hash of its locks, so a changed lock makes a new installation and an unchanged one is
reused by every checkout. Virtual environments cannot be moved, so each is built in place, under a file lock, and
counts only once its marker is written; a build that broke off is removed and done again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import platformdirs

Say = Callable[[str], None]
"""Tells the person who waits what is going on, one line a call."""

LOCKS = Path(__file__).parent.parent / "locks"
_MARKER = ".complete"
_STEP_LIMIT_S = 900
_PROGRESS_EVERY_S = 10
_SHOWN_OUTPUT_CHARS = 4000


class InstallFailed(Exception):
    """A client could not be installed; the message holds the command and the end of its output."""


def ensure(name: str, locks: Sequence[Path], build: Callable[[Path, Say], None], say: Say) -> Path:
    """The folder of an installation, built first when it is absent. May take minutes and may be repeated safely.

    ``build`` fills the empty folder it is given. Raises :class:`InstallFailed`.
    """
    root = Path(platformdirs.user_cache_dir("agent-governor")) / "test-clients"
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{name}-{_key(locks)}"
    with _locked(root / f"{folder.name}.lock", name, say):
        if not ((folder / _MARKER).is_file() and python_of(folder).exists()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            started = time.monotonic()
            say(f"{name}: installing into {folder} (once a machine)")
            build(folder, say)
            (folder / _MARKER).touch()
            say(f"{name}: installed in {time.monotonic() - started:.0f} s")
    return folder


def python_of(folder: Path) -> Path:
    """The interpreter of the installation's virtual environment."""
    return folder / "venv" / "bin" / "python"


def make_venv(folder: Path, lock: Path, say: Say) -> None:
    """A virtual environment with exactly what a hashed requirements file names."""
    run([sys.executable, "-m", "venv", str(folder / "venv")], folder, say)
    pip = [str(python_of(folder)), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    run([*pip, "--require-hashes", "-r", str(lock)], folder, say)


def run(command: Sequence[str], folder: Path, say: Say, path: Path | None = None) -> None:
    """One step of an installation, told while it runs. ``path`` is put in front of PATH."""
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment.get('PATH', '')}"
    log = folder / "install.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        started = time.monotonic()
        try:
            while True:
                try:
                    code = process.wait(_PROGRESS_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - started
                    say(f"  {Path(command[0]).name} {' '.join(command[1:4])} ... {seconds:.0f} s")
                    if seconds > _STEP_LIMIT_S:
                        raise InstallFailed(f"no end after {_STEP_LIMIT_S} s: {' '.join(command)}; see {log}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        tail = log.read_text(errors="replace")[-_SHOWN_OUTPUT_CHARS:]
        raise InstallFailed(f"exit {code} of: {' '.join(command)}\n{tail}")


def _key(locks: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for part in (platform.machine(), sys.platform, "{}.{}".format(*sys.version_info[:2])):
        digest.update(part.encode() + b"\0")
    for lock in locks:
        digest.update(lock.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path, name: str, say: Say) -> Iterator[None]:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another process that installs it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield

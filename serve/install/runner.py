"""Runs one command of an installation, with a log and a sign of life. Apart, so that tests can stand in for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from serve.process import describe_exit

Say = Callable[[str], None]
"""Tells the person who waits, one line a call."""

_PROGRESS_EVERY_S = 10.0
_TAIL_LINES = 25
_NOT_INHERITED = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PIP_TARGET"})
"""They reach into the engine's environment. Compiled modules are wanted: imports are most of an engine's start."""


class Outcome(msgspec.Struct, frozen=True):
    """``how`` says how it ended, for people; ``tail`` are its last lines."""

    ok: bool
    how: str
    tail: str = ""


class Runner(Protocol):
    """Runs a command to its end."""

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, limit_s: float, say: Say
    ) -> Outcome:
        """Blocks; raises nothing for a command that fails or cannot be started."""
        ...


class SubprocessRunner:
    """Output is appended to ``log``; ``say`` is told every ten seconds what the last line was."""

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, limit_s: float, say: Say
    ) -> Outcome:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        whole = {**inherited, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **env}
        with log.open("ab") as sink:
            start = sink.tell()
            try:
                process = subprocess.Popen(
                    argv,
                    env=whole,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    # A compiler's children must end with it.
                    start_new_session=True,
                )
            except OSError as error:
                return Outcome(ok=False, how=f"could not be started: {error}")
            try:
                code = _wait(process, limit_s, log, start, say)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code is None:
            return Outcome(ok=False, how=f"had not ended after {limit_s:g} s", tail=_tail(log, start))
        return Outcome(ok=code == 0, how=describe_exit(code), tail=_tail(log, start))


def _wait(process: subprocess.Popen[bytes], limit_s: float, log: Path, start: int, say: Say) -> int | None:
    began = time.monotonic()
    seconds = 0.0
    while True:
        try:
            return process.wait(min(_PROGRESS_EVERY_S, limit_s - seconds))
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - began
            if seconds >= limit_s:
                return None
            last = _tail(log, start).rpartition("\n")[2].strip()
            say(f"      {seconds:.0f} s: {last[:100]}")


def _tail(log: Path, start: int) -> str:
    """The last lines since ``start``."""
    with log.open("rb") as source:
        end = source.seek(0, os.SEEK_END)
        source.seek(max(start, end - 20_000))
        text = source.read().decode(errors="replace")
    return "\n".join(line.rstrip() for line in text.splitlines()[-_TAIL_LINES:])

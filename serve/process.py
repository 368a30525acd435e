"""One engine process: start it in a session of its own, drain it, end it and everything it started.

Kept apart from the supervisor's decisions. Owned by one event loop; no method blocks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from serve.engine_log import EngineLog
from serve.process_table import MARK_VARIABLE, EngineRecord, ProcessTable, signal_quietly

_POLL_S = 0.05
_READ_BYTES = 65536
_GATE = ("/bin/sh", "-c", 'read -r go && exec "$0" "$@" </dev/null')
"""Becomes the program behind it when it is told to; ends when whoever should tell it is gone."""


class EngineCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    """Added to our own environment."""
    without: frozenset[str] = frozenset()
    """Variables of ours that it must not inherit."""
    cwd: Path | None = None
    port: int | None = None
    """TCP port on the loopback that it will listen on, checked to be free before each start."""
    worker_title: str | None = None
    """How the titles of the processes begin that it cannot do without. They are looked for among its own only."""


class EngineProcess:
    """A started engine. ``wait`` must be awaited to its end once, by one task."""

    def __init__(
        self,
        command: EngineCommand,
        log: EngineLog,
        table: ProcessTable,
        *,
        grace_s: float,
        on_output: Callable[[], None],
    ) -> None:
        """Makes its process, which waits for :meth:`let_go` and ends if we are gone before. Blocks for a few
        milliseconds; raises :class:`OSError`.

        ``grace_s``: how long it may take to end by itself after SIGTERM. ``on_output`` is called when it wrote.
        """
        self._log = log
        self._table = table
        self._grace_s = grace_s
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        mark = secrets.token_hex(16)
        if shutil.which(command.argv[0]) is None:
            raise FileNotFoundError(f"there is no program {command.argv[0]}")
        inherited = {name: value for name, value in os.environ.items() if name not in command.without}
        reader, writer = os.pipe()
        try:
            self._popen = subprocess.Popen(
                (*_GATE, *command.argv),
                stdin=subprocess.PIPE,
                stdout=writer,
                stderr=writer,
                cwd=command.cwd,
                env={**inherited, **command.env, MARK_VARIABLE: mark},
                # Its own session: a Ctrl-C at our terminal is ours to handle, and one signal reaches all of it.
                start_new_session=True,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self._reader: int | None = reader
        self._loop.add_reader(reader, self._drain)
        self._record = table.record(self._popen.pid, command.argv, mark)

    def let_go(self) -> None:
        """Let it become the engine, once its identity is written down: one of which nothing is known would outlive us.
        Call it once."""
        gate = self._popen.stdin
        if gate is not None:
            with contextlib.suppress(BrokenPipeError), gate:
                gate.write(b"go\n")

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def record(self) -> EngineRecord | None:
        """Identity to write down; ``None`` on systems without ``/proc``."""
        return self._record

    async def wait(self) -> int:
        """Wait until it has ended, then end what it left behind. Returns its status, negative for a signal."""
        while not self._has_exited():  # noqa: ASYNC110 - the system offers no portable event for this
            await asyncio.sleep(_POLL_S)
        # Not collected before its descendants are gone: until then its pid, and so its session's id, stay its own.
        await end_members(self._table, self._record, grace_s=self._grace_s)
        self._close_reader()
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        return self._popen.wait()

    async def terminate(self) -> None:
        """SIGTERM to all of it, a bounded wait, SIGKILL to what is left. ``wait`` then returns. May be repeated."""
        self._signal_all(signal.SIGTERM)
        deadline = self._loop.time() + self._grace_s
        while not self._has_exited() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        if not self._has_exited():
            self._log.note(f"did not end within {self._grace_s:g} s of SIGTERM: killed")
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        """To its session at once, and to those of its processes that have left it."""
        if self._popen.returncode is not None:
            return
        strays = [] if self._record is None else self._table.members(self._record)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)
        for pid in strays:
            if not self._is_in_session(pid):
                signal_quietly(pid, number)

    def _is_in_session(self, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(pid) == self._popen.pid
        return True

    def _has_exited(self) -> bool:
        """True once it has ended; does not collect it, so that its pid stays reserved."""
        if self._popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _drain(self) -> None:
        if self._reader is None:
            return
        try:
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._log.write(data)
            self._on_output()
        else:
            self._close_reader()

    def _close_reader(self) -> None:
        """Take what is still in the pipe, and let go of it even if a stranger holds the other end."""
        if self._reader is None:
            return
        reader, self._reader = self._reader, None
        self._loop.remove_reader(reader)
        with contextlib.suppress(OSError):
            while data := os.read(reader, _READ_BYTES):
                self._log.write(data)
        os.close(reader)


async def end_members(table: ProcessTable, record: EngineRecord | None, *, grace_s: float) -> list[int]:
    """End every living process of an engine: SIGTERM, bounded wait, SIGKILL. Returns those that were found.

    Each pid is looked up anew before each signal, so a reused one is never hit.
    """
    if record is None:
        return []
    loop = asyncio.get_running_loop()
    found = members = table.members(record)
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        for pid in members:
            signal_quietly(pid, number)
        deadline = loop.time() + patience_s
        while members and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            members = table.members(record)
    return found


def describe_exit(returncode: int) -> str:
    """``exited with status 1``, ``was killed by SIGSEGV``."""
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if name == "SIGKILL":
        return "was killed by SIGKILL (by hand, or the machine ran out of memory)"
    return f"was killed by {name}"

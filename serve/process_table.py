"""Which processes are ours: exact identity, never a name and never a bare pid.

A pid is reused, a title is changed, a child is re-parented. A process is ours if its pid, its start time and the boot
it was started in are those we wrote down, and it leads the session, has the arguments or carries the mark that we gave
it; a descendant is ours if it is in the session of such a process, carries the mark, or was written down with its start
time. Linux only (``/proc``): elsewhere nothing can be
proved, so nothing is ever reaped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

MARK_VARIABLE = "GOVERNOR_ENGINE_MARK"
"""Environment variable that marks an engine and everything it starts."""


_DEAD = "ZX"


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies one engine process for as long as this boot lasts."""

    pid: int
    start_ticks: int
    """Field 22 of ``/proc/PID/stat``: clock ticks after boot."""
    boot_id: str
    argv_sha256: str
    mark: str
    workers: dict[int, int] = {}
    """Start times of its workers by pid, once it was ready. A process that titles itself (``setproctitle``) loses both
    arguments and environment, so nothing else tells of it when its first process is gone."""


def argv_sha256(argv: Sequence[str]) -> str:
    return hashlib.sha256(b"".join(os.fsencode(arg) + b"\0" for arg in argv)).hexdigest()


class _Stat(msgspec.Struct, frozen=True):
    state: str
    session: int
    start_ticks: int


class ProcessTable:
    """A view of ``/proc``. All calls are quick, block on nothing and may be repeated."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def record(self, pid: int, argv: Sequence[str], mark: str) -> EngineRecord | None:
        """Identity of a process we have just started; ``None`` where it cannot be told."""
        stat = self._stat(pid)
        boot_id = self._boot_id()
        if stat is None or boot_id is None:
            return None
        return EngineRecord(
            pid=pid, start_ticks=stat.start_ticks, boot_id=boot_id, argv_sha256=argv_sha256(argv), mark=mark
        )

    def is_present(self, record: EngineRecord) -> bool:
        """True if exactly this process is in the table, alive or as a zombie that nobody has collected.

        Beside pid, start and boot one more thing must match. A process may rewrite its arguments and environment, and
        SGLang's first one loses both; but we made it the leader of a session, and that it stays. A zombie has none of
        these left.
        """
        stat = self._stat(record.pid)
        if stat is None or stat.start_ticks != record.start_ticks or self._boot_id() != record.boot_id:
            return False
        return (
            stat.state in _DEAD
            or stat.session == record.pid
            or hashlib.sha256(self._read(record.pid, "cmdline")).hexdigest() == record.argv_sha256
            or self._is_marked(record.pid, record)
        )

    def members(self, record: EngineRecord) -> list[int]:
        """Living processes that are this engine or were started by it, ourselves never among them."""
        if self._boot_id() != record.boot_id:
            return []
        # While its first process is in the table, the id of a session cannot be anybody else's.
        session_is_ours = self.is_present(record)
        found = []
        for pid in self._pids():
            if pid == os.getpid() or (stat := self._stat(pid)) is None or stat.state in _DEAD:
                continue
            if (
                (session_is_ours and stat.session == record.pid)
                or record.workers.get(pid) == stat.start_ticks
                or self._is_marked(pid, record)
            ):
                found.append(pid)
        return found

    def titled(self, record: EngineRecord, title: str) -> dict[int, int]:
        """Members whose command line begins so, with their start times: enough for :meth:`lives`."""
        found = {}
        for pid in self.members(record):
            stat = self._stat(pid)
            if stat is not None and self._read(pid, "cmdline").startswith(title.encode()):
                found[pid] = stat.start_ticks
        return found

    def lives(self, pid: int, start_ticks: int) -> bool:
        """Whether the process with this pid is still the one that was started then, and no zombie."""
        stat = self._stat(pid)
        return stat is not None and stat.start_ticks == start_ticks and stat.state not in _DEAD

    def oom_kills(self) -> int:
        """Processes of this machine that the kernel has ended for lack of memory since it started; 0 if unknown."""
        for line in self._read_text("vmstat").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0

    def listener(self, port: int) -> int | None:
        """Pid of the process that listens on a TCP port of this machine, if it can be told."""
        inodes = set()
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in (self._proc / "net" / name).read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                        inodes.add(f"socket:[{fields[9]}]")
        if not inodes:
            return None
        for pid in self._pids():
            with contextlib.suppress(OSError):
                for link in (self._proc / str(pid) / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        if str(link.readlink()) in inodes:
                            return pid
        return None

    def _pids(self) -> list[int]:
        try:
            return [int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()]
        except OSError:
            return []

    def _stat(self, pid: int) -> _Stat | None:
        # The second field is the program's name in brackets and may hold blanks and brackets itself.
        _, _, rest = self._read(pid, "stat").rpartition(b")")
        fields = rest.split()
        if len(fields) < 20:
            return None
        return _Stat(state=fields[0].decode(), session=int(fields[3]), start_ticks=int(fields[19]))

    def _is_marked(self, pid: int, record: EngineRecord) -> bool:
        return f"{MARK_VARIABLE}={record.mark}".encode() in self._read(pid, "environ").split(b"\0")

    def _boot_id(self) -> str | None:
        return self._read_text("sys/kernel/random/boot_id").strip() or None

    def _read_text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text()
        except OSError:
            return ""

    def _read(self, pid: int, name: str) -> bytes:
        try:
            return (self._proc / str(pid) / name).read_bytes()
        except OSError:
            return b""


def signal_quietly(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has just gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)

"""What of a running engine survives its governor: one file with its identity, and the lock of who supervises it.

After ``kill -9`` of the governor an engine may be left. The next start ends exactly that engine: it is named by pid,
start time, boot and arguments together (``serve.process_table``), so a stranger that got its pid is never touched.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import msgspec

from serve.errors import AlreadySupervised
from serve.process import end_members
from serve.process_table import EngineRecord, ProcessTable

_logger = logging.getLogger(__name__)


class RunState:
    """The state file of one supervised engine. ``acquire`` first; everything else needs the lock."""

    def __init__(self, folder: Path, name: str = "engine") -> None:
        self._folder = folder
        self._path = folder / f"{name}.json"
        self._lock_path = folder / f"{name}.lock"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Become the one supervisor. Raises :class:`AlreadySupervised`. The lock ends with this process."""
        if self._lock is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise AlreadySupervised(
                f"another governor (pid {holder}) already runs an engine from {self._folder}. "
                "Stop it with `governor stop`, or set GOVERNOR_HOME to another folder."
            ) from taken
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, record: EngineRecord) -> None:
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(record))
        part.replace(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def read(self) -> EngineRecord | None:
        """The engine last written down; ``None`` if there is none or the file makes no sense."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=EngineRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError):
            _logger.warning("%s is unreadable: an engine left by an earlier run would not be found", self._path)
            return None

    async def reap_orphan(self, table: ProcessTable, *, grace_s: float) -> list[int]:
        """End what an earlier governor left. Returns the pids that were ended, and forgets them."""
        record = self.read()
        ended = await end_members(table, record, grace_s=grace_s)
        if ended:
            _logger.warning("ended an engine left by an earlier run: pids %s", ended)
        self.clear()
        return ended

"""One thread that writes to a database what others hand over, so that no request ever waits for a disk.

The turn log and the archive have one each. This is where the exceptions of SQLAlchemy, alembic, the drivers and the
operating system end: as a line of health.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import sqlalchemy as sa
from alembic.util import CommandError
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from governor.store.database import Database, is_damage

RETRY_MOST_S: Final = 2.0
BUSY_S: Final = 2.0
"""After a batch, the writer looks for the next one by itself: to wake a thread takes a third of a millisecond of
whoever does it, which is a request on its way."""
TEND_AGAIN_S: Final = 60.0
"""After upkeep that failed."""

_AWAY = (SQLAlchemyError, sqlite3.Error, OSError, CommandError)
"""The database cannot take anything now."""
_UNWRITABLE = (DataError, IntegrityError, OverflowError, UnicodeError, TypeError, ValueError)
"""One record cannot be stored; the others can."""

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)


class Waiting(Protocol[T]):
    """What waits, in order. Called under the writer's lock; does no I/O."""

    def __len__(self) -> int: ...

    def take(self, most: int) -> list[T]:
        """Remove and return the oldest."""
        ...


class Work(Protocol[T]):
    """What is done with a connection, on the writer's thread. May raise what databases raise: it is tried again."""

    def begin(self, connection: sa.Connection) -> None:
        """Once, before the first batch."""
        ...

    def write(self, connection: sa.Connection, batch: list[T], again: bool) -> None:
        """The batch in one transaction: all or none. ``again``: an earlier try may have been stored after all."""
        ...

    def tend(self, connection: sa.Connection) -> float | None:
        """Upkeep, briefly, when it is due. Returns the seconds until it is due again; ``None``: never."""
        ...

    def named(self, record: T) -> str:
        """The record in a sentence about its loss."""
        ...

    def told(self) -> None:
        """Something may have changed in what there is to tell. Called without the lock. Raises nothing."""
        ...


class Writer(Generic[T]):
    """The thread, its connection and its retries; ``name`` says whose in the logs.

    A batch of up to ``batch`` records waits ``linger_s`` for company; after a failure it waits ``retry_s``, then twice
    as long each time, up to ``RETRY_MOST_S``. Attributes without underscore are read under ``lock``, which is never
    held during I/O.
    """

    def __init__(
        self, url: URL, waiting: Waiting[T], work: Work[T], *, name: str, batch: int, linger_s: float, retry_s: float
    ) -> None:
        self.lock: Final = threading.Lock()
        self.problem: str | None = None
        """Why nothing can be written now."""
        self.last_loss: str | None = None
        self.lost = 0
        """Dropped for another reason than a full backlog."""
        self.set_aside: tuple[str, ...] = ()

        self._name = name
        self._work = work
        self._most = batch
        self._linger_s = linger_s
        self._first_retry_s = retry_s
        self._database = Database(url)
        self._news = threading.Condition(self.lock)
        """The writer waits here: for records, for company to them, or for the time to try again."""
        self._settled = threading.Condition(self.lock)
        """Whoever flushes waits here."""
        self._waiting = waiting
        self._batch: list[T] = []
        self._ready = False
        """The database has been opened once and the work has begun."""
        self._flushing = 0
        self._asleep = True
        """The writer has to be told of a record."""
        self._stop_at: float | None = None
        self._ended = False

        # The thread's own.
        self._one_by_one = False
        self._again = False
        self._retry_s = retry_s
        self._tend_at: float | None = 0.0
        self._busy_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, put: Callable[[R], None], record: R) -> None:
        """Take a record: ``put`` adds it to what waits, under the lock. Counted as lost once the writer has ended."""
        with self.lock:
            if self._ended:
                self.lost += 1
                return
            put(record)
            waiting = len(self._waiting)
            if waiting == self._most or (waiting == 1 and self._asleep):
                self._news.notify()

    def pending(self) -> int:
        """Under the lock."""
        return len(self._batch) + len(self._waiting)

    def in_flight(self) -> tuple[T, ...]:
        """Taken from what waits and not known to be stored. Under the lock."""
        return tuple(self._batch)

    def tend_soon(self) -> None:
        """Make upkeep due. Called by the work."""
        self._tend_at = 0.0

    def flush(self, timeout_s: float) -> bool:
        """Block until nothing waits to be written. ``False`` when that took longer, or the writer is closed."""
        with self.lock:
            self._flushing += 1
            self._news.notify()
            try:
                self._settled.wait_for(lambda: self._written() or self._ended, timeout_s)
                return self._written()
            finally:
                self._flushing -= 1

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most ``timeout_s``, and stop. Blocks; may be repeated."""
        with self.lock:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + timeout_s
            self._news.notify()
        # An attempt that runs is not torn off at the deadline: it may well be the commit.
        self._thread.join(timeout_s + 1.0)

    def _written(self) -> bool:
        return self._ready and not self.pending()

    # The thread.

    def _run(self) -> None:
        try:
            while self._round():
                self._work.told()
        finally:
            self._database.close()
            with self.lock:
                self._ended = True
                left = self.pending()
                self._settled.notify_all()
            if left:
                _log.error("%s closed with %d records unwritten: %s", self._name, left, self.problem)
            self._work.told()

    def _round(self) -> bool:
        """Wait for work, try it, book the outcome. ``False`` when it is time to end."""
        with self.lock:
            self._wait_for_work()
            if self._stop_at is not None and (not self.pending() or time.monotonic() >= self._stop_at):
                return False
            batch = self._batch[:1] if self._one_by_one else list(self._batch)
        try:
            self._write(batch)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: a writer that dies would lose every row
            self._on_failure(error)
        else:
            self._on_success(len(batch))
            self._tend()
        return True

    def _wait_for_work(self) -> None:
        if self._batch:
            return
        if not self._has_found_work():
            self._asleep = True
            idle_s = None if self._tend_at is None else max(0.0, self._tend_at - time.monotonic())
            self._news.wait_for(lambda: len(self._waiting) or self._stop_at is not None or not self._ready, idle_s)
            if self._ready and len(self._waiting):
                self._news.wait_for(self._is_wanted, self._linger_s)
        self._batch = self._waiting.take(self._most)

    def _has_found_work(self) -> bool:
        """Looks by itself, while more is likely to come soon."""
        self._asleep = False
        while self._linger_s and time.monotonic() < self._busy_until and not self._is_wanted():
            self._news.wait_for(self._is_wanted, self._linger_s)
            if len(self._waiting):
                return True
        return False

    def _is_wanted(self) -> bool:
        """Nothing is waited for any longer."""
        return len(self._waiting) >= self._most or bool(self._flushing) or self._stop_at is not None

    def _write(self, batch: list[T]) -> None:
        try:
            connection = self._database.ensure_open()
            if not self._ready:
                self._work.begin(connection)
        except _UNWRITABLE as error:
            raise RuntimeError(f"cannot open the database: {error}") from error
        if batch:
            self._work.write(connection, batch, self._again)

    def _tend(self) -> None:
        if self._batch or self._tend_at is None or time.monotonic() < self._tend_at or self._stop_at is not None:
            return
        try:
            pause_s = self._work.tend(self._database.ensure_open())
        except Exception as error:  # noqa: BLE001 - the boundary of the thread, as above
            # Not health: records are written all the same.
            self._database.close(damaged=is_damage(error))
            unforeseen = None if isinstance(error, _AWAY) else error
            _log.error("%s: upkeep failed: %s", self._name, error, exc_info=unforeseen)
            pause_s = TEND_AGAIN_S
        self._tend_at = None if pause_s is None else time.monotonic() + pause_s

    def _on_success(self, written: int) -> None:
        with self.lock:
            recovered = self.problem is not None
            self._busy_until = time.monotonic() + BUSY_S if written else 0.0
            del self._batch[:written]
            self._ready = True
            self.problem = None
            self.set_aside = tuple(str(path) for path in self._database.set_aside)
            self._retry_s = self._first_retry_s
            if not self._batch:
                self._one_by_one = self._again = False
            if self._written():
                self._settled.notify_all()
        if recovered:
            _log.warning("%s writes again", self._name)

    def _on_failure(self, error: Exception) -> None:
        self._database.close(damaged=is_damage(error))
        self._again = True
        problem = f"{type(error).__name__}: {getattr(error, 'orig', None) or error}"
        if self._batch and isinstance(error, _UNWRITABLE):
            self._on_unwritable(problem, error)
        else:
            self._on_away(problem, unforeseen=None if isinstance(error, _AWAY) else error)

    def _on_unwritable(self, problem: str, error: Exception) -> None:
        """Find the record that cannot be stored by trying them one by one; give up that one."""
        if not self._one_by_one:
            self._one_by_one = True
            return
        with self.lock:
            record = self._batch.pop(0)
            self.lost += 1
            self.last_loss = f"{self._work.named(record)} cannot be stored: {problem}"
            if self._written():
                self._settled.notify_all()
        _log.error("%s: %s", self._name, self.last_loss, exc_info=error)

    def _on_away(self, problem: str, *, unforeseen: Exception | None) -> None:
        """Say so once, and wait before the next try; a shutdown cuts the wait short."""
        if self.problem != problem:
            _log.error("%s cannot write: %s", self._name, problem, exc_info=unforeseen)
        with self.lock:
            self.problem = problem
        self._work.told()
        with self.lock:
            stop_at = self._stop_at
            wait_s = self._retry_s if stop_at is None else min(self._retry_s, max(0.0, stop_at - time.monotonic()))
            self._news.wait_for(lambda: self._stop_at != stop_at, wait_s)
            self._retry_s = min(self._retry_s * 2, RETRY_MOST_S)

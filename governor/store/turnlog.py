"""The turn log on a database: hands records to one writer thread, so that no request ever waits for a disk.

This is where the exceptions of SQLAlchemy, alembic, the drivers and the operating system end: as
:class:`~governor.store.model.StoreHealth`.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

import msgspec
from alembic.util import CommandError
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from governor.events import TurnDecided
from governor.store.backlog import Backlog, Entry
from governor.store.database import Database, is_damage, parse_url
from governor.store.model import StoreHealth, TurnClosed, TurnOpened
from governor.store.writing import write_entries, write_interrupted

BATCH_TURNS: Final = 256
LINGER_S: Final = 0.05
"""How long the first record of a batch waits for company. A kill loses this much, and the commit that runs."""
CAPACITY_TURNS: Final = 10_000
"""Some 2 KB each: 20 MB when a database is away for long."""
RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 2.0

_AWAY = (SQLAlchemyError, sqlite3.Error, OSError, CommandError)
"""The database cannot take anything now."""
_UNWRITABLE = (DataError, IntegrityError, OverflowError, UnicodeError, TypeError, ValueError)
"""One record cannot be stored; the others can."""

_log = logging.getLogger(__name__)


class SqlTurnLog:
    """Implements :class:`~governor.store.model.TurnLog`; see ``docs/design/turn-log.md``.

    Raises :class:`~governor.store.errors.BadDatabaseUrl` when built with a URL that cannot work; everything later
    goes to :meth:`health`. ``home_id`` names whose rows these are (:func:`governor.store.home_id.ensure_home_id`):
    at the start, rows that earlier runs of that home left open become ``interrupted``. The caller holds the lock that
    makes it the home's only running governor.

    At most ``capacity`` turns wait. A batch waits ``linger_s`` for company; after a failure it waits ``retry_s``, then
    twice as long each time, up to ``RETRY_MOST_S``. ``on_health_change`` is called on the writer thread, with the new
    health, when anything but ``pending`` changed.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        home_id: str,
        run_id: str | None = None,
        capacity: int = CAPACITY_TURNS,
        linger_s: float = LINGER_S,
        retry_s: float = RETRY_FIRST_S,
        on_health_change: Callable[[StoreHealth], None] | None = None,
    ) -> None:
        parsed = parse_url(url)
        self._url = parsed.render_as_string(hide_password=True)
        self._home_id = home_id
        self._run_id = run_id or uuid.uuid4().hex
        self._linger_s = linger_s
        self._first_retry_s = retry_s
        self._on_health_change = on_health_change
        self._database = Database(parsed)

        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        """The writer waits here: for records, for company to them, or for the time to try again."""
        self._settled = threading.Condition(self._lock)
        """Whoever flushes waits here."""
        self._backlog = Backlog(capacity)
        self._batch: list[Entry] = []
        self._problem: str | None = None
        self._last_loss: str | None = None
        self._lost = 0
        """Dropped for another reason than a full backlog."""
        self._reclosed = 0
        self._set_aside: tuple[str, ...] = ()
        self._ready = False
        """The database has been opened once and earlier runs' rows are marked."""
        self._flushing = 0
        self._stop_at: float | None = None
        self._ended = False

        # The writer's own.
        self._one_by_one = False
        self._retrying = False
        self._retry_s = retry_s
        self._told = self._health()
        self._thread = threading.Thread(target=self._run, name="turn-log", daemon=True)
        self._thread.start()

    # The port.

    def opened(self, record: TurnOpened) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        with self._lock:
            if self._ended:
                self._lost += 1
                return
            self._backlog.add_opened(record)
            self._wake_for_records()

    def decided(self, record: TurnDecided) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        with self._lock:
            if self._ended:
                self._lost += 1
                return
            self._backlog.add_decided(record)
            self._wake_for_records()

    def closed(self, record: TurnClosed) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        with self._lock:
            if self._ended:
                self._lost += 1
                return
            self._backlog.add_closed(record)
            self._wake_for_records()

    def health(self) -> StoreHealth:
        """Cheap, from any thread."""
        with self._lock:
            return self._health()

    # Life.

    def flush(self, timeout_s: float) -> bool:
        """Block until nothing waits to be written. ``False`` when that took longer, or the log is closed."""
        with self._lock:
            self._flushing += 1
            self._news.notify()
            try:
                self._settled.wait_for(lambda: self._written() or self._ended, timeout_s)
                return self._written()
            finally:
                self._flushing -= 1

    def close(self, timeout_s: float) -> int:
        """Write what waits, for at most ``timeout_s``, and stop. Returns the turns left unwritten.

        Blocks; may be repeated. Records given afterwards are dropped and counted.
        """
        with self._lock:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + timeout_s
            self._news.notify()
        # An attempt that runs is not torn off at the deadline: it may well be the commit.
        self._thread.join(timeout_s + 1.0)
        return self.health().pending

    # Under the lock.

    def _pending(self) -> int:
        return len(self._batch) + len(self._backlog)

    def _written(self) -> bool:
        return self._ready and not self._pending()

    def _health(self) -> StoreHealth:
        return StoreHealth(
            ok=self._problem is None,
            pending=self._pending(),
            dropped=self._backlog.dropped + self._lost,
            last_error=self._problem or self._last_loss,
            url=self._url,
            anomalies=self._backlog.anomalies + self._reclosed,
            set_aside=self._set_aside,
        )

    def _wake_for_records(self) -> None:
        waiting = len(self._backlog)
        if waiting in (1, BATCH_TURNS):
            self._news.notify()

    # The writer thread.

    def _run(self) -> None:
        try:
            while self._round():
                self._tell()
        finally:
            self._database.close()
            with self._lock:
                self._ended = True
                left = self._pending()
                self._settled.notify_all()
            if left:
                _log.error("turn log closed with %d turns unwritten: %s", left, self._problem)
            self._tell()

    def _round(self) -> bool:
        """Wait for work, try it, book the outcome. ``False`` when it is time to end."""
        with self._lock:
            self._wait_for_work()
            if self._stop_at is not None and (not self._pending() or time.monotonic() >= self._stop_at):
                return False
            batch = self._batch[:1] if self._one_by_one else self._batch
        try:
            self._write(batch)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: a writer that dies would lose every row
            self._on_failure(error)
        else:
            self._on_success(len(batch))
        return True

    def _wait_for_work(self) -> None:
        if not self._batch:
            self._news.wait_for(lambda: len(self._backlog) or self._stop_at is not None or not self._ready)
            if self._ready:
                self._news.wait_for(
                    lambda: len(self._backlog) >= BATCH_TURNS or self._flushing or self._stop_at is not None,
                    self._linger_s,
                )
            self._batch = self._backlog.take(BATCH_TURNS)

    def _write(self, batch: list[Entry]) -> None:
        try:
            connection = self._database.ensure_open()
            if not self._ready:
                write_interrupted(connection, home_id=self._home_id, run_id=self._run_id)
        except _UNWRITABLE as error:
            raise RuntimeError(f"cannot open the database: {error}") from error
        reclosed = write_entries(connection, batch, home_id=self._home_id, run_id=self._run_id)
        with self._lock:
            # In a batch tried before, a row that is closed already is that try's own doing.
            self._reclosed += 0 if self._retrying else reclosed

    def _on_success(self, written: int) -> None:
        with self._lock:
            recovered = self._problem is not None
            del self._batch[:written]
            self._ready = True
            self._problem = None
            self._set_aside = tuple(str(path) for path in self._database.set_aside)
            self._retry_s = self._first_retry_s
            if not self._batch:
                self._one_by_one = self._retrying = False
            if self._written():
                self._settled.notify_all()
        if recovered:
            _log.warning("turn log writes again")

    def _on_failure(self, error: Exception) -> None:
        self._database.close(damaged=is_damage(error))
        self._retrying = True
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
        with self._lock:
            entry = self._batch.pop(0)
            self._lost += 1
            self._last_loss = f"the record of turn {entry.turn_id} cannot be stored: {problem}"
            if self._written():
                self._settled.notify_all()
        _log.error("turn log: %s", self._last_loss, exc_info=error)

    def _on_away(self, problem: str, *, unforeseen: Exception | None) -> None:
        """Say so once, and wait before the next try; a shutdown cuts the wait short."""
        if self._problem != problem:
            _log.error("turn log cannot write: %s", problem, exc_info=unforeseen)
        with self._lock:
            self._problem = problem
        self._tell()
        with self._lock:
            stop_at = self._stop_at
            wait_s = self._retry_s if stop_at is None else min(self._retry_s, max(0.0, stop_at - time.monotonic()))
            self._news.wait_for(lambda: self._stop_at != stop_at, wait_s)
            self._retry_s = min(self._retry_s * 2, RETRY_MOST_S)

    def _tell(self) -> None:
        health = msgspec.structs.replace(self.health(), pending=0)
        if health == self._told:
            return
        self._told = health
        if self._on_health_change is None:
            return
        try:
            self._on_health_change(self.health())
        except Exception:  # noqa: BLE001 - the boundary to foreign code on this thread
            _log.exception("turn log: the listener to its health failed")

"""The turn log on a database: hands records to one writer thread, so that no request ever waits for a disk."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.events import PrefixLost, TurnDecided
from governor.store.backlog import Backlog, Entry
from governor.store.database import parse_url
from governor.store.model import StoreHealth, TurnClosed, TurnOpened
from governor.store.writer import Writer
from governor.store.writing import write_entries, write_interrupted

BATCH_TURNS: Final = 256
LINGER_S: Final = 0.05
"""How long the first record of a batch waits for company. A kill loses this much, and the commit that runs."""
CAPACITY_TURNS: Final = 10_000
"""Some 2 KB each: 20 MB when a database is away for long."""
RETRY_FIRST_S: Final = 0.1

_log = logging.getLogger(__name__)


class SqlTurnLog:
    """Implements :class:`~governor.store.model.TurnLog`; see ``docs/design/turn-log.md``.

    Raises :class:`~governor.store.errors.BadDatabaseUrl` when built with a URL that cannot work; everything later
    goes to :meth:`health`. ``home_id`` names whose rows these are (:func:`governor.store.home_id.ensure_home_id`):
    at the start, rows that earlier runs of that home left open become ``interrupted``. The caller holds the lock that
    makes it the home's only running governor.

    At most ``capacity`` turns wait; ``linger_s`` and ``retry_s`` are the :class:`~governor.store.writer.Writer`'s.
    ``on_health_change`` is called on the writer thread, with the new health, when anything but ``pending`` changed.
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
        self._on_health_change = on_health_change
        self._backlog = Backlog(capacity)
        self._writer: Writer[Entry] = Writer(
            parsed, self._backlog, self, name="turn log", batch=BATCH_TURNS, linger_s=linger_s, retry_s=retry_s
        )
        self._reclosed = 0
        self._told = self.health()
        self._writer.start()

    # The port.

    def opened(self, record: TurnOpened) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        self._writer.add(self._backlog.add_opened, record)

    def decided(self, record: TurnDecided) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        self._writer.add(self._backlog.add_decided, record)

    def closed(self, record: TurnClosed) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        self._writer.add(self._backlog.add_closed, record)

    def lost(self, record: PrefixLost) -> None:
        """See :class:`~governor.store.model.TurnLog`."""
        self._writer.add(self._backlog.add_lost, record)

    def health(self) -> StoreHealth:
        """Cheap, from any thread."""
        writer = self._writer
        with writer.lock:
            return StoreHealth(
                ok=writer.problem is None,
                pending=writer.pending(),
                dropped=self._backlog.dropped + writer.lost,
                last_error=writer.problem or writer.last_loss,
                url=self._url,
                anomalies=self._backlog.anomalies + self._reclosed,
                set_aside=writer.set_aside,
            )

    # Life.

    def flush(self, timeout_s: float) -> bool:
        """Block until nothing waits to be written. ``False`` when that took longer, or the log is closed."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Write what waits, for at most ``timeout_s``, and stop. Returns the turns left unwritten.

        Blocks; may be repeated. Records given afterwards are dropped and counted.
        """
        self._writer.close(timeout_s)
        return self.health().pending

    # The work of the writer thread: see :class:`~governor.store.writer.Work`.

    def begin(self, connection: sa.Connection) -> None:
        write_interrupted(connection, home_id=self._home_id, run_id=self._run_id)

    def write(self, connection: sa.Connection, batch: list[Entry], again: bool) -> None:
        reclosed = write_entries(connection, batch, home_id=self._home_id, run_id=self._run_id)
        with self._writer.lock:
            # In a batch tried before, a row that is closed already is that try's own doing.
            self._reclosed += 0 if again else reclosed

    def tend(self, connection: sa.Connection) -> None:
        """Turns are kept for good."""

    def named(self, record: Entry) -> str:
        return f"the record of turn {record.turn_id}"

    def told(self) -> None:
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

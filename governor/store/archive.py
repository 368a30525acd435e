"""The archive on the turn log's database: a writer thread of its own for what is kept, a few threads for what is asked.

What waits to be written is already there for whoever asks, so that a head or a text never seems lost for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.clock import Clock
from governor.store.archive_backlog import ArchiveBacklog, Kept
from governor.store.archive_model import ArchiveHealth, Compaction, Head, LeftText, Recalled
from governor.store.archive_pruning import drop_old_heads, prune
from governor.store.archive_query import ArchiveReader
from governor.store.archive_schema import (
    compaction_row,
    compactions,
    entries,
    entry_row,
    entry_statement,
    head_row,
    heads,
    insert,
    text_row,
    texts,
)
from governor.store.database import parse_url
from governor.store.errors import StoreUnreadable
from governor.store.schema import Row
from governor.store.writer import Writer
from governor.types import AgentName, SessionId

MOST_BYTES: Final = 2**30
HEADS_PER_SESSION: Final = 8
"""The newest: a conversation that branches needs one for each branch that is still continued."""
WAITING_RECORDS: Final = 1_000
WAITING_BYTES: Final = 64 * 2**20
BATCH_RECORDS: Final = 16
BATCH_BYTES: Final = 8 * 2**20
LINGER_S: Final = 0.05
RETRY_FIRST_S: Final = 0.1
PRUNE_EVERY_S: Final = 600.0
PRUNE_PAUSE_S: Final = 0.25
"""Between two rounds of one pruning, for whoever else writes to the database."""
SETTLE_S: Final = 1.0
"""How long a list of compactions waits for those that are being written."""
READING_THREADS: Final = 2

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SqlArchive:
    """Implements :class:`~governor.store.archive_model.Archive`; see ``docs/design/archive.md``.

    Raises :class:`~governor.store.errors.BadDatabaseUrl` when built with a URL that cannot work; everything later goes
    to :meth:`health`. Keeps and shows what is of the home ``home_id`` only. ``days_of`` says for how long an agent's
    are kept; it is called on the writer thread. ``most_bytes`` bounds the texts and heads as stored, compressed.

    At most ``waiting_records`` wait, of ``waiting_bytes`` together, besides one batch; ``linger_s`` and ``retry_s`` are
    the :class:`~governor.store.writer.Writer`'s.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        home_id: str,
        days_of: Callable[[AgentName], float],
        clock: Clock,
        most_bytes: int = MOST_BYTES,
        waiting_records: int = WAITING_RECORDS,
        waiting_bytes: int = WAITING_BYTES,
        linger_s: float = LINGER_S,
        retry_s: float = RETRY_FIRST_S,
        prune_every_s: float = PRUNE_EVERY_S,
    ) -> None:
        parsed = parse_url(url)
        self._home_id = home_id
        self._days_of = days_of
        self._clock = clock
        self._most_bytes = most_bytes
        self._prune_every_s = prune_every_s
        self._backlog = ArchiveBacklog(most_records=waiting_records, most_bytes=waiting_bytes, take_bytes=BATCH_BYTES)
        self._bytes_kept: int | None = None
        """As last counted, and what was written since."""
        self._reader = ArchiveReader(parsed, home_id)
        self._reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="archive-read")
        self._closed = False
        self._unreadable: str | None = None
        self._writer: Writer[Kept] = Writer(
            parsed, self._backlog, self, name="archive", batch=BATCH_RECORDS, linger_s=linger_s, retry_s=retry_s
        )
        self._writer.start()

    # The port.

    def keep(self, head: Head, left: tuple[LeftText, ...], compaction: Compaction) -> None:
        """See :class:`~governor.store.archive_model.Archive`."""
        self._writer.add(self._backlog.add, Kept(number=0, compaction=compaction, head=head, left=left))

    def note(self, compaction: Compaction) -> None:
        """See :class:`~governor.store.archive_model.Archive`."""
        self._writer.add(self._backlog.add, Kept(number=0, compaction=compaction))

    async def heads(self, agent: AgentName, session: SessionId) -> tuple[Head, ...]:
        """See :class:`~governor.store.archive_model.Archive`. The newest few of the session."""
        # What waits is looked at first: a record that is stored in between is found twice rather than never.
        waiting = [
            record.head
            for record in self._waiting()
            if record.head is not None and (record.head.agent, record.head.session) == (agent, session)
        ]
        stored = await self._ask(lambda: self._reader.heads(agent, session, HEADS_PER_SESSION)) or []
        return tuple(dict.fromkeys([*stored, *waiting]))[-HEADS_PER_SESSION:]

    async def recall(self, handle: str, agent: AgentName | None = None) -> Recalled | None:
        """See :class:`~governor.store.archive_model.Archive`."""
        for record in reversed(self._waiting()):
            compaction = record.compaction
            if agent is not None and compaction.agent != agent:
                continue
            for left in record.left:
                if left.handle == handle:
                    return Recalled(
                        left=left,
                        agent=compaction.agent,
                        session=compaction.session,
                        turn_id=compaction.turn_id,
                        left_at=compaction.at,
                    )
        return await self._ask(lambda: self._reader.recall(handle, agent))

    async def compactions(self, agent: AgentName | None = None, most: int = 100) -> tuple[Compaction, ...]:
        """See :class:`~governor.store.archive_model.Archive`."""

        def settled() -> list[Compaction]:
            if self.health().ok:
                self._writer.flush(SETTLE_S)
            return self._reader.compactions(agent, most)

        return tuple(await self._ask(settled) or ())

    def health(self) -> ArchiveHealth:
        """Cheap, from any thread."""
        writer = self._writer
        with writer.lock:
            return ArchiveHealth(
                ok=writer.problem is None,
                pending=writer.pending(),
                dropped=self._backlog.dropped + writer.lost,
                bytes_kept=self._bytes_kept,
                last_error=writer.problem or writer.last_loss,
            )

    # Life.

    def flush(self, timeout_s: float) -> bool:
        """Block until nothing waits to be written. ``False`` when that took longer, or the archive is closed."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Write what waits, for at most ``timeout_s``, and stop. Returns the records left unwritten.

        Blocks; may be repeated. Records given afterwards are dropped and counted; reading finds nothing stored.
        """
        self._closed = True
        self._writer.close(timeout_s)
        self._reading.shutdown(wait=False)
        return self.health().pending

    # Reading.

    def _waiting(self) -> tuple[Kept, ...]:
        with self._writer.lock:
            return (*self._writer.in_flight(), *self._backlog.waiting())

    async def _ask(self, question: Callable[[], T]) -> T | None:
        """``None`` where the database is away, or the archive closed."""
        if self._closed:
            return None
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._reading, question)
        except StoreUnreadable as error:
            if self._unreadable != str(error):
                self._unreadable = str(error)
                _log.warning("archive cannot be read: %s", error)
            return None
        self._unreadable = None
        return answer

    # The work of the writer thread: see :class:`~governor.store.writer.Work`.

    def begin(self, connection: sa.Connection) -> None:
        """Nothing is to be done first."""

    def write(self, connection: sa.Connection, batch: list[Kept], again: bool) -> None:
        """Each row is safe to repeat, so a batch that may have been stored already is written as any other."""
        rows = [_rows_of(record, self._home_id) for record in batch]  # packing takes a while: before the lock
        with connection.begin():
            for record, of_table in zip(batch, rows, strict=True):
                for table, some in of_table.items():
                    if some:
                        name = connection.dialect.name
                        connection.execute(entry_statement(name) if table is entries else insert(name, table), some)
                if record.head is not None:
                    [head] = of_table[heads]
                    drop_old_heads(
                        connection,
                        home_id=self._home_id,
                        agent=head["agent"],
                        session=head["session"],
                        most=HEADS_PER_SESSION,
                    )
        written = sum(row["stored_bytes"] for each in rows for table in (texts, heads) for row in each[table])
        self._book(None if self._bytes_kept is None else self._bytes_kept + written)

    def tend(self, connection: sa.Connection) -> float:
        pruned = prune(
            connection,
            home_id=self._home_id,
            now=self._clock.wall(),
            days_of=self._days_of,
            most_bytes=self._most_bytes,
        )
        self._book(pruned.kept_bytes)
        return PRUNE_PAUSE_S if pruned.more else self._prune_every_s

    def named(self, record: Kept) -> str:
        return f"the compaction of turn {record.compaction.turn_id}"

    def told(self) -> None:
        """Nobody listens: health is asked for."""

    def _book(self, bytes_kept: int | None) -> None:
        with self._writer.lock:
            self._bytes_kept = bytes_kept
        if bytes_kept is not None and bytes_kept > self._most_bytes:
            self._writer.tend_soon()


def _rows_of(record: Kept, home_id: str) -> dict[sa.Table, list[Row]]:
    ours: Row = {"home_id": home_id}
    text_rows = [ours | text_row(left) for left in record.left]
    return {
        texts: text_rows,
        entries: [
            ours | entry_row(left, text["digest"], record.compaction)
            for left, text in zip(record.left, text_rows, strict=True)
        ],
        heads: [] if record.head is None else [ours | head_row(record.head)],
        compactions: [ours | compaction_row(record.number, record.compaction)],
    }

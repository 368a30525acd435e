"""Reading the archive, for the command line and for :mod:`governor.store.archive`. Works while a governor writes.

Every method may block on the database and raises :class:`~governor.store.errors.StoreUnreadable`; a database of before
the archive has nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.store.archive_model import Compaction, Head, Recalled
from governor.store.archive_schema import (
    compactions,
    entries,
    heads,
    stored_compaction,
    stored_head,
    stored_recalled,
    texts,
)
from governor.store.errors import StoreUnreadable
from governor.store.reading import ReadOnly
from governor.types import AgentName, SessionId


class ArchiveReader:
    """Reads the archive at ``url``; :class:`~governor.store.errors.BadDatabaseUrl` if that cannot work.

    ``home_id``: of this home only; ``None``: of all that share the database.
    """

    def __init__(self, url: str | URL, home_id: str | None = None) -> None:
        self._database = ReadOnly(url)
        self._home_id = home_id

    def heads(self, agent: AgentName, session: SessionId, most: int) -> list[Head]:
        """The newest ``most`` of the session, the newest last."""
        query = (
            sa.select(heads)
            .where(*self._ours(heads), heads.c.agent == agent, heads.c.session == session)
            .order_by(heads.c.made_at.desc())
            .limit(most)
        )
        with self._connect(heads) as connection:
            rows = connection.execute(query).mappings() if connection is not None else ()
            return [stored_head(row) for row in rows][::-1]

    def recall(self, handle: str, agent: AgentName | None = None) -> Recalled | None:
        """What left last under a handle. ``agent``: of what this agent's turns left."""
        query = sa.select(entries).where(*self._ours(entries), entries.c.handle == handle)
        if agent is not None:
            query = query.where(entries.c.agent == agent)
        with self._connect(entries) as connection:
            found = () if connection is None else connection.execute(query).mappings().all()
            if connection is None or not found:
                return None
            # Sorted here: asked for the newest, a planner may walk all entries by time.
            entry = max(found, key=lambda row: row["left_at"])
            of_entry = (texts.c.home_id == entry["home_id"], texts.c.digest == entry["digest"])
            text = connection.execute(sa.select(texts.c.packed, texts.c.body).where(*of_entry)).mappings().one()
            return stored_recalled(entry, text)

    def compactions(self, agent: AgentName | None = None, most: int = 100) -> list[Compaction]:
        """The newest first."""
        query = sa.select(compactions).where(*self._ours(compactions))
        if agent is not None:
            query = query.where(compactions.c.agent == agent)
        query = query.order_by(compactions.c.at.desc(), compactions.c.number.desc()).limit(most)
        with self._connect(compactions) as connection:
            rows = connection.execute(query).mappings() if connection is not None else ()
            return [stored_compaction(row) for row in rows]

    def _ours(self, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        return [] if self._home_id is None else [table.c.home_id == self._home_id]

    @contextmanager
    def _connect(self, table: sa.Table) -> Iterator[sa.Connection | None]:
        """``None`` where there is no such table."""
        try:
            with self._database.connect() as connection:
                yield connection if sa.inspect(connection).has_table(table.name) else None
        except (zlib.error, msgspec.MsgspecError) as error:
            raise StoreUnreadable(f"what the archive keeps is damaged: {error}") from error

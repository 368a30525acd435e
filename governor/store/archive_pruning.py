"""What the archive lets go of: what is older than its agent's days, and the oldest while all is more than it may be.

A call does little, so that whoever writes to the same database hardly waits, and says whether there is more to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from governor.store.archive_schema import compactions, entries, heads, texts
from governor.types import AgentName

DAY_S: Final = 86_400
ROUND_ROWS: Final = 200
ROUND_BYTES: Final = 16 * 2**20
"""Dropping a text costs reading it, where a database keeps large values as chains of pages."""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    kept_bytes: int
    """Texts and heads as stored, without the database's own overhead."""
    more: bool
    """There is more to let go of."""


def prune(
    connection: sa.Connection, *, home_id: str, now: float, days_of: Callable[[AgentName], float], most_bytes: int
) -> Pruned:
    """Do one round of it, in one transaction. ``now`` is Unix time in seconds."""
    with connection.begin():
        dropped = 0
        for agent in _agents(connection, home_id):
            dropped += _drop_expired(connection, home_id, agent, now - days_of(agent) * DAY_S)
        kept_bytes = _kept_bytes(connection, home_id)
        if kept_bytes > most_bytes:
            dropped += _drop_oldest(connection, home_id, (), (), min(kept_bytes - most_bytes, ROUND_BYTES))
            kept_bytes = _kept_bytes(connection, home_id)
    return Pruned(kept_bytes=kept_bytes, more=dropped > 0)


def drop_old_heads(connection: sa.Connection, *, home_id: str, agent: str, session: str, most: int) -> None:
    """Leave a session its newest ``most``. Within the caller's transaction."""
    ours = (heads.c.home_id == home_id, heads.c.agent == agent, heads.c.session == session)
    digests = connection.execute(sa.select(heads.c.digest).where(*ours).order_by(heads.c.made_at.desc())).scalars()
    for digest in list(digests)[most:]:
        connection.execute(sa.delete(heads).where(*ours, heads.c.digest == digest))


def _agents(connection: sa.Connection, home_id: str) -> list[AgentName]:
    known = sa.union(*(sa.select(table.c.agent).where(table.c.home_id == home_id) for table in _WITH_AGENT))
    return [AgentName(agent) for agent in connection.execute(known).scalars()]


def _kept_bytes(connection: sa.Connection, home_id: str) -> int:
    sums = (sa.select(sa.func.sum(table.c.stored_bytes)).where(table.c.home_id == home_id) for table in (texts, heads))
    return sum(int(connection.execute(query).scalar() or 0) for query in sums)


def _drop_expired(connection: sa.Connection, home_id: str, agent: AgentName, before: float) -> int:
    old = (compactions.c.home_id == home_id, compactions.c.agent == agent, compactions.c.at < before)
    connection.execute(sa.delete(compactions).where(*old))
    return _drop_oldest(
        connection,
        home_id,
        (entries.c.agent == agent, entries.c.left_at < before),
        (heads.c.agent == agent, heads.c.made_at < before),
        ROUND_BYTES,
    )


Conditions = Sequence[sa.ColumnElement[bool]]


def _drop_oldest(
    connection: sa.Connection, home_id: str, of_entries: Conditions, of_heads: Conditions, most_bytes: int
) -> int:
    """Drop the oldest entries and heads that meet the conditions, until their bytes reach ``most_bytes`` or there are
    enough of them. Returns how many. A text goes with the last entry that names it."""
    entry_query = (
        sa.select(entries.c.agent, entries.c.handle, entries.c.digest, entries.c.left_at.label("at"), _text_bytes())
        .where(entries.c.home_id == home_id, *of_entries)
        .order_by(entries.c.left_at)
        .limit(ROUND_ROWS)
    )
    head_query = (
        sa.select(heads.c.agent, heads.c.session, heads.c.digest, heads.c.made_at.label("at"), heads.c.stored_bytes)
        .where(heads.c.home_id == home_id, *of_heads)
        .order_by(heads.c.made_at)
        .limit(ROUND_ROWS)
    )
    oldest = heapq.merge(
        connection.execute(entry_query).mappings().all(),
        connection.execute(head_query).mappings().all(),
        key=lambda row: row["at"],
    )
    gone: list[sa.RowMapping] = []
    freed = 0
    for row in oldest:
        if freed >= most_bytes or len(gone) >= ROUND_ROWS:
            break
        gone.append(row)
        freed += row["stored_bytes"] or 0
    gone_entries = [row for row in gone if "handle" in row]
    _drop_rows(connection, entries, home_id, gone_entries)
    _drop_rows(connection, heads, home_id, [row for row in gone if "session" in row])
    named = sa.exists().where(entries.c.home_id == texts.c.home_id, entries.c.digest == texts.c.digest)
    _drop_rows(connection, texts, home_id, gone_entries, ~named)
    return len(gone)


def _text_bytes() -> sa.Label[Any]:
    """A scalar, not a join, so that the entries are read in the order of their index whatever the planner thinks."""
    of_text = (texts.c.home_id == entries.c.home_id, texts.c.digest == entries.c.digest)
    return sa.select(texts.c.stored_bytes).where(*of_text).scalar_subquery().label("stored_bytes")


def _drop_rows(
    connection: sa.Connection,
    table: sa.Table,
    home_id: str,
    rows: list[sa.RowMapping],
    *conditions: sa.ColumnElement[bool],
) -> None:
    """Drop the rows with these keys that meet the conditions."""
    if not rows:
        return
    keys = [column for column in table.primary_key.columns if column.name != "home_id"]
    same = [column == sa.bindparam(f"the_{column.name}") for column in keys]
    values = [{f"the_{column.name}": row[column.name] for column in keys} for row in rows]
    connection.execute(sa.delete(table).where(table.c.home_id == home_id, *same, *conditions), values)


_WITH_AGENT: Final = (entries, heads, compactions)

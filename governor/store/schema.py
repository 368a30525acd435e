"""The tables of turns, of decisions about them and of what they lost, and how a record becomes a row and back.

One row a turn, one a decision, one a loss. A column is NULL while its value is unknown, and only then. What the engine
reported and what we estimated have columns of their own, so that no sum can mix them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from governor.events import PrefixLost, TurnDecided
from governor.store.model import StoredTurn, TurnClosed, TurnOpened
from governor.types import AgentName, TurnId, TurnState, Usage, Verdict

metadata: Final = sa.MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"}
)

Row = dict[str, Any]
"""Column name to value, as the database takes it."""

turns: Final = sa.Table(
    "turns",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    # Which process wrote the row, and whose it is: a start closes what an earlier run of the same home left open.
    sa.Column("home_id", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # NULL only where a turn's opening was never seen.
    sa.Column("agent", sa.Text),
    sa.Column("route", sa.Text),
    sa.Column("opened_at", sa.Double),
    # Where the turn stands in lists: its opening, or its end where only that is known.
    sa.Column("listed_at", sa.Double, nullable=False),
    # NULL until the turn's own end is recorded; stays NULL in a row found open after a crash.
    sa.Column("closed_at", sa.Double),
    sa.Column("session", sa.Text),
    sa.Column("kind", sa.Text),
    sa.Column("shape", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("stream", sa.Boolean),
    sa.Column("http_status", sa.Integer),
    sa.Column("error_code", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("finish_reason", sa.Text),
    # As the engine reported.
    sa.Column("prompt_tokens", sa.BigInteger),
    sa.Column("completion_tokens", sa.BigInteger),
    sa.Column("cached_tokens", sa.BigInteger),
    sa.Column("cached_device_tokens", sa.BigInteger),
    sa.Column("cached_host_tokens", sa.BigInteger),
    sa.Column("cached_storage_tokens", sa.BigInteger),
    sa.Column("reasoning_tokens", sa.BigInteger),
    # As we counted or estimated.
    sa.Column("prompt_tokens_counted", sa.BigInteger),
    sa.Column("prompt_tokens_margin", sa.BigInteger),
    sa.Column("count_source", sa.Text),
    sa.Column("completion_tokens_estimated", sa.BigInteger),
    sa.Column("cap_requested", sa.BigInteger),
    sa.Column("cap_applied", sa.BigInteger),
    sa.Column("cap_reason", sa.Text),
    sa.Column("window_tokens", sa.BigInteger),
    sa.Column("message_count", sa.BigInteger),
    sa.Column("shared_messages", sa.BigInteger),
    sa.Column("broke_at", sa.Text),
    sa.Column("edits", sa.JSON(none_as_null=True)),
    sa.Column("flags", sa.JSON(none_as_null=True)),
    sa.Column("pieces", sa.Integer),
    sa.Column("paused_ms", sa.Double),
    sa.Column("queued_ms", sa.Double),
    sa.Column("ttft_ms", sa.Double),
    sa.Column("duration_ms", sa.Double),
    sa.Column("request_bytes", sa.BigInteger),
    sa.Column("response_bytes", sa.BigInteger),
)

sa.Index("ix_turns_agent_listed_at", turns.c.agent, turns.c.listed_at)
sa.Index("ix_turns_listed_at", turns.c.listed_at)
_is_open = turns.c.state == TurnState.OPEN.value
sa.Index("ix_turns_open", turns.c.home_id, sqlite_where=_is_open, postgresql_where=_is_open)

decisions: Final = sa.Table(
    "decisions",
    metadata,
    # No foreign key: where rows had to be given up, a decision may stand without its turn.
    sa.Column("turn_id", sa.Text, primary_key=True),
    # Counts the decisions of the process that wrote them, so that what is written twice stands once.
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("position", sa.Integer),
    sa.Column("waiting", sa.Integer, nullable=False),
    sa.Column("running", sa.Integer, nullable=False),
    sa.Column("needs_tokens", sa.BigInteger),
    sa.Column("booked_tokens", sa.BigInteger, nullable=False),
    sa.Column("free_tokens", sa.BigInteger),
)

losses: Final = sa.Table(
    "losses",
    metadata,
    # No foreign key, as above.
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("cause", sa.Text, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("tokens", sa.BigInteger),
    sa.Column("seconds", sa.Double),
    sa.Column("margin_s", sa.Double),
    sa.Column("message", sa.BigInteger),
    sa.Column("byte", sa.BigInteger),
    sa.Column("detail", sa.Text, nullable=False),
)

OPENING: Final = ("agent", "route", "opened_at")
USAGE: Final = Usage.__struct_fields__
CLOSING: Final = (*(name for name in TurnClosed.__struct_fields__ if name not in ("turn_id", "usage")), *USAGE)


def storable(value: Any) -> Any:
    """``value`` as both databases take it: plain types, and text that is valid UTF-8 without NUL."""
    if isinstance(value, str):
        text = str.__str__(value)
        if text.isascii() and "\0" not in text:
            return text
        return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    if isinstance(value, tuple):
        return [storable(item) for item in value]
    return value


def opening_row(record: TurnOpened) -> Row:
    """The columns an opening fills."""
    row = {name: storable(getattr(record, name)) for name in OPENING}
    return {**row, "turn_id": record.turn_id, "state": TurnState.OPEN.value, "listed_at": record.opened_at}


def closing_row(record: TurnClosed, opened: TurnOpened | None) -> Row:
    """The columns an ending fills, with those of the opening: NULL where it was never seen."""
    row: Row = {"listed_at": record.closed_at, **dict.fromkeys(OPENING)} if opened is None else opening_row(opened)
    row.update({name: storable(getattr(record, name)) for name in CLOSING if name not in USAGE})
    row.update({name: getattr(record.usage, name) for name in USAGE})
    row["turn_id"] = record.turn_id
    return row


def decision_row(number: int, record: TurnDecided) -> Row:
    """``number``: see the column."""
    return {"number": number, **{name: storable(getattr(record, name)) for name in record.__struct_fields__}}


def stored_decision(row: sa.RowMapping) -> TurnDecided:
    """A row of ``decisions`` as a typed value."""
    facts = {name: row[name] for name in TurnDecided.__struct_fields__}
    return TurnDecided(**{**facts, "verdict": Verdict(row["verdict"])})


def loss_row(record: PrefixLost) -> Row:
    return {name: storable(getattr(record, name)) for name in record.__struct_fields__}


def stored_loss(row: sa.RowMapping) -> PrefixLost:
    """A row of ``losses`` as a typed value."""
    return PrefixLost(**{name: row[name] for name in PrefixLost.__struct_fields__})


def stored_turn(row: sa.RowMapping, lost: Sequence[PrefixLost] = ()) -> StoredTurn:
    """A row of ``turns`` as a typed value. ``lost``: what the turn lost."""
    closed: TurnClosed | None = None
    if row["closed_at"] is not None:
        closing = {name: row[name] for name in CLOSING if name not in USAGE}
        closing["usage"] = {name: row[name] for name in USAGE}
        closed = msgspec.convert({"turn_id": row["turn_id"], **closing}, TurnClosed)
    return StoredTurn(
        turn_id=TurnId(row["turn_id"]),
        run_id=row["run_id"],
        state=TurnState(row["state"]),
        agent=None if row["agent"] is None else AgentName(row["agent"]),
        route=row["route"],
        opened_at=row["opened_at"],
        closed=closed,
        losses=tuple(sorted(lost, key=lambda each: -(each.tokens or 0))),
    )


_Insert = sqlite.Insert | postgresql.Insert


def _insert(dialect: str, table: sa.Table = turns) -> _Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


@functools.cache  # building it costs several times what running it does
def opening_statement(dialect: str) -> _Insert:
    """Insert a row for a turn that began. Safe to repeat; completes a row whose ending came first."""
    insert = _insert(dialect)
    return insert.on_conflict_do_update(
        index_elements=[turns.c.turn_id],
        set_={name: insert.excluded[name] for name in (*OPENING, "listed_at")},
        where=turns.c.opened_at.is_(None),
    )


@functools.cache
def closing_statement(dialect: str) -> _Insert:
    """Close a turn's row, or make it closed at once. The first ending wins: a second one touches no row.

    A row marked interrupted has no ``closed_at``, so the turn's own ending, should it still come, replaces the guess.
    """
    insert = _insert(dialect)
    kept = {name: sa.func.coalesce(turns.c[name], insert.excluded[name]) for name in OPENING}
    return insert.on_conflict_do_update(
        index_elements=[turns.c.turn_id],
        set_={**kept, **{name: insert.excluded[name] for name in CLOSING}},
        where=turns.c.closed_at.is_(None),
    )


@functools.cache
def decision_statement(dialect: str) -> _Insert:
    """Insert a decision. Safe to repeat."""
    insert = _insert(dialect, decisions)
    return insert.on_conflict_do_nothing(index_elements=[decisions.c.turn_id, decisions.c.number])


@functools.cache
def loss_statement(dialect: str) -> _Insert:
    """Insert a loss. Safe to repeat."""
    insert = _insert(dialect, losses)
    return insert.on_conflict_do_nothing(index_elements=[losses.c.turn_id, losses.c.cause])


def interrupt_statement(*, home_id: str, run_id: str) -> sa.Update:
    """Mark what earlier runs of this home left open. When such a turn ended is unknown, so ``closed_at`` stays NULL."""
    return (
        sa.update(turns)
        .where(turns.c.state == TurnState.OPEN.value, turns.c.home_id == home_id, turns.c.run_id != run_id)
        .values(state=TurnState.INTERRUPTED.value)
    )

"""The archive's tables, and how its records become rows and back.

A text is stored once a home, under the SHA-256 of its bytes; an entry says which agent's turn left it, under which
handle. Handles are 64 bits, short enough for a prompt: the digest makes sure that two agents whose texts share a handle
never get each other's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from governor.store.archive_model import CompactedBy, Compaction, Head, LeftText, Recalled
from governor.store.schema import Row, metadata, storable
from governor.types import AgentName, SessionId, TurnId

_COMPRESSION: Final = 3
"""zlib's level: half the time of the default for a tenth more bytes."""

texts: Final = sa.Table(
    "archive_texts",
    metadata,
    sa.Column("home_id", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    # Of the body as it is stored.
    sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    # The body is zlib's.
    sa.Column("packed", sa.Boolean, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
# The sum of a home's bytes is read from this index, not from the bodies.
sa.Index("ix_archive_texts_home_id_stored_bytes", texts.c.home_id, texts.c.stored_bytes)

entries: Final = sa.Table(
    "archive_entries",
    metadata,
    sa.Column("home_id", sa.Text, primary_key=True),
    sa.Column("agent", sa.Text, primary_key=True),
    sa.Column("handle", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("what", sa.Text, nullable=False),
    # Where it left last: session, turn, Unix time.
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text, nullable=False),
    sa.Column("left_at", sa.Double, nullable=False),
)
# The handle comes first: no planner takes it for a question by time.
sa.Index("ix_archive_entries_handle", entries.c.handle, entries.c.home_id, entries.c.agent)
sa.Index("ix_archive_entries_home_id_digest", entries.c.home_id, entries.c.digest)
sa.Index("ix_archive_entries_home_id_agent_left_at", entries.c.home_id, entries.c.agent, entries.c.left_at)
sa.Index("ix_archive_entries_home_id_left_at", entries.c.home_id, entries.c.left_at)

heads: Final = sa.Table(
    "archive_heads",
    metadata,
    sa.Column("home_id", sa.Text, primary_key=True),
    sa.Column("agent", sa.Text, primary_key=True),
    sa.Column("session", sa.Text, primary_key=True),
    # Of the whole head, so that what is written twice stands once.
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("covered", sa.BigInteger, nullable=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),
    sa.Column("loose_chain", sa.LargeBinary, nullable=False),
    sa.Column("made_at", sa.Double, nullable=False),
    sa.Column("before_tokens", sa.BigInteger, nullable=False),
    sa.Column("after_tokens", sa.BigInteger, nullable=False),
    sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    sa.Column("packed", sa.Boolean, nullable=False),
    # A MessagePack list of the messages' bytes.
    sa.Column("messages", sa.LargeBinary, nullable=False),
)
sa.Index("ix_archive_heads_of_session", heads.c.home_id, heads.c.agent, heads.c.session, heads.c.made_at)
sa.Index("ix_archive_heads_home_id_made_at", heads.c.home_id, heads.c.made_at, heads.c.stored_bytes)

compactions: Final = sa.Table(
    "compactions",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("home_id", sa.Text, nullable=False),
    # Counts the compactions of the process that wrote them, so that what is written twice stands once.
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("before_tokens", sa.BigInteger),
    sa.Column("after_tokens", sa.BigInteger),
    sa.Column("stages", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("took_ms", sa.Double),
    sa.Column("summary_turn", sa.Text),
)
sa.Index("ix_compactions_at", compactions.c.at)
sa.Index("ix_compactions_agent_home_id_at", compactions.c.agent, compactions.c.home_id, compactions.c.at)

_HEAD: Final = tuple(name for name in Head.__struct_fields__ if name != "messages")


def _packed(plain: bytes) -> Row:
    """Compressed if that is smaller."""
    squeezed = zlib.compress(plain, _COMPRESSION)
    packed = len(squeezed) < len(plain)
    body = squeezed if packed else plain
    return {"packed": packed, "stored_bytes": len(body), "body": body}


def _unpacked(body: bytes, packed: bool) -> bytes:
    return zlib.decompress(body) if packed else bytes(body)


def text_row(left: LeftText) -> Row:
    return {"digest": sha256(left.body).digest(), **_packed(left.body)}


def entry_row(left: LeftText, digest: bytes, compaction: Compaction) -> Row:
    """``compaction``: the one that made it leave."""
    return {
        "agent": storable(compaction.agent),
        "handle": storable(left.handle),
        "digest": digest,
        "what": storable(left.what),
        "session": storable(compaction.session),
        "turn_id": storable(compaction.turn_id),
        "left_at": compaction.at,
    }


def head_row(head: Head) -> Row:
    facts = {name: storable(getattr(head, name)) for name in _HEAD}
    packed = _packed(msgspec.msgpack.encode(head.messages))
    digest = sha256(msgspec.msgpack.encode(head)).digest()
    return {**facts, "digest": digest, "messages": packed.pop("body"), **packed}


def compaction_row(number: int, compaction: Compaction) -> Row:
    """``number``: see the column."""
    return {"number": number, **{name: storable(getattr(compaction, name)) for name in Compaction.__struct_fields__}}


def stored_recalled(entry: sa.RowMapping, text: sa.RowMapping) -> Recalled:
    """Raises ``zlib.error`` where the body is damaged."""
    return Recalled(
        left=LeftText(handle=entry["handle"], body=_unpacked(text["body"], text["packed"]), what=entry["what"]),
        agent=AgentName(entry["agent"]),
        session=SessionId(entry["session"]),
        turn_id=TurnId(entry["turn_id"]),
        left_at=entry["left_at"],
    )


def stored_head(row: sa.RowMapping) -> Head:
    """Raises ``zlib.error`` or ``msgspec.MsgspecError`` where the body is damaged."""
    facts: dict[str, Any] = {name: row[name] for name in _HEAD}
    messages = msgspec.msgpack.decode(_unpacked(row["messages"], row["packed"]), type=tuple[bytes, ...])
    return Head(**{**facts, "chain": bytes(row["chain"]), "loose_chain": bytes(row["loose_chain"])}, messages=messages)


def stored_compaction(row: sa.RowMapping) -> Compaction:
    facts: dict[str, Any] = {name: row[name] for name in Compaction.__struct_fields__}
    return Compaction(**{**facts, "by": CompactedBy(row["by"])})


def insert(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Insert rows that may be there: what is there stays."""
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    return statement.on_conflict_do_nothing(index_elements=_keys(table))


def entry_statement(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Insert an entry; one that is there becomes the newer of the two."""
    statement = postgresql.insert(entries) if dialect == "postgresql" else sqlite.insert(entries)
    newer = {name: statement.excluded[name] for name in ("what", "session", "turn_id", "left_at")}
    return statement.on_conflict_do_update(
        index_elements=_keys(entries), set_=newer, where=entries.c.left_at <= statement.excluded.left_at
    )


def _keys(table: sa.Table) -> Sequence[sa.Column[Any]]:
    return list(table.primary_key.columns)

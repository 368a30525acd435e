"""Records and archives for the tests of the archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from sqlalchemy.engine import URL

from governor.clock import ManualClock
from governor.store.archive import SqlArchive
from governor.store.archive_model import CompactedBy, Compaction, Head, LeftText
from governor.types import AgentName, SessionId, TurnId
from tests.store_records import HOME, T0

ADA, BOB = AgentName("ada"), AgentName("bob")
S1, S2 = SessionId("s1"), SessionId("s2")


def compaction(turn_id: str, *, agent: str = "ada", session: str = "s1", at: float = T0, **facts: Any) -> Compaction:
    chosen = {"by": CompactedBy.GOVERNOR, "outcome": "accepted", "before_tokens": 140_000, "after_tokens": 60_000}
    return Compaction(
        turn_id=TurnId(turn_id), agent=AgentName(agent), session=SessionId(session), at=at, **{**chosen, **facts}
    )


def head(name: str, *, agent: str = "ada", session: str = "s1", at: float = T0, body: str = "") -> Head:
    return Head(
        agent=AgentName(agent),
        session=SessionId(session),
        covered=7,
        chain=sha256(name.encode()).digest(),
        loose_chain=sha256(b"loose" + name.encode()).digest(),
        messages=(b'{"role":"system","content":"s"}', f'{{"role":"user","content":"{name}{body}"}}'.encode()),
        made_at=at,
        before_tokens=140_000,
        after_tokens=60_000,
    )


def left(body: str) -> LeftText:
    """A content that is a text without anything to escape."""
    raw = f'"{body}"'.encode()
    return LeftText(handle=f"gov-{sha256(raw).hexdigest()[:16]}", body=raw, what=f"read_file, {len(raw)} bytes")


@contextmanager
def archive(url: str | URL, **options: Any) -> Iterator[SqlArchive]:
    """An archive with quick retries that ends with the test, whatever the test does."""
    chosen = {"home_id": HOME, "days_of": lambda agent: 30, "clock": ManualClock(wall=T0)}
    kept = SqlArchive(url, **{**chosen, "linger_s": 0.001, "retry_s": 0.01, **options})
    try:
        yield kept
    finally:
        kept.close(5)

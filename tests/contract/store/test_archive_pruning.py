"""What the archive lets go of, and when."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.clock import ManualClock
from governor.store.archive import SqlArchive
from governor.store.archive_model import LeftText
from governor.store.archive_pruning import DAY_S, ROUND_ROWS, Pruned, prune
from governor.store.archive_query import ArchiveReader
from governor.store.database import engine_for, sqlite_url
from governor.types import AgentName, SessionId
from tests.archive_records import ADA, BOB, S1, archive, compaction, head, left
from tests.store_records import HOME, T0

ALL = 2**40


def dense(name: str, size_bytes: int = 1_000) -> LeftText:
    """A text that does not compress."""
    blocks = (sha256(f"{name}{number}".encode()).digest() for number in range(size_bytes // 32 + 1))
    return LeftText(handle=left(name).handle, body=b"".join(blocks)[:size_bytes], what=name)


@contextmanager
def filled(url: URL, *, count: int = 10, agent: str = "ada") -> Iterator[SqlArchive]:
    """``x0`` to ``x9``: 1,000 bytes a day each, the first at T0, without heads to speak of."""
    with archive(url) as kept:
        for number in range(count):
            at = T0 + number * DAY_S
            kept.keep(
                head(f"h{number}", agent=agent, session=f"s{number}", at=at),
                (dense(f"x{number}"),),
                compaction(f"t{number}", agent=agent, session=f"s{number}", at=at),
            )
        assert kept.flush(10)
        yield kept


def pruned(url: URL, *, days: float = 1e6, now: float = T0, most_bytes: int = ALL, home_id: str = HOME) -> Pruned:
    with engine_for(url).connect() as connection:
        return prune(connection, home_id=home_id, now=now, days_of=lambda agent: days, most_bytes=most_bytes)


def there(url: URL, names: str = "x", count: int = 10) -> list[int]:
    """Numbers of the texts that can be recalled."""
    reader = ArchiveReader(url)
    return [number for number in range(count) if reader.recall(left(f"{names}{number}").handle) is not None]


def rows(url: URL) -> dict[str, int]:
    with engine_for(url).connect() as connection, connection.begin():
        return {
            name: connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one()
            for name in ("archive_texts", "archive_entries", "archive_heads", "compactions")
        }


def test_nothing_goes_while_there_is_room_and_time(url: URL) -> None:
    with filled(url):
        result = pruned(url)
    assert not result.more
    assert result.kept_bytes > 10_000
    assert there(url) == list(range(10))


def test_what_is_older_than_its_agents_days_goes_whole(url: URL) -> None:
    with filled(url):
        assert pruned(url, days=4.5, now=T0 + 9 * DAY_S).more
        assert not pruned(url, days=4.5, now=T0 + 9 * DAY_S).more
    assert there(url) == [5, 6, 7, 8, 9]
    assert set(rows(url).values()) == {5}


def test_each_agent_has_its_own_days(url: URL) -> None:
    def days_of(agent: AgentName) -> float:
        return {ADA: 5.0, BOB: 1.0}[agent]

    with archive(url) as kept:
        for agent in ("ada", "bob"):
            gone = (dense("shared"), dense(f"of {agent}"))
            kept.keep(head(agent, agent=agent), gone, compaction(agent, agent=agent))
        assert kept.flush(10)
    with engine_for(url).connect() as connection:
        prune(connection, home_id=HOME, now=T0 + 2 * DAY_S, days_of=days_of, most_bytes=ALL)
    reader = ArchiveReader(url)
    assert reader.recall(dense("of bob").handle) is None
    assert reader.recall(dense("shared").handle, BOB) is None
    assert reader.recall(dense("of ada").handle) is not None
    found = reader.recall(dense("shared").handle, ADA)
    assert found is not None
    assert found.left == dense("shared"), "a text stays while anybody's entry names it"


def test_over_the_cap_the_oldest_go_and_no_more_than_need_be(url: URL) -> None:
    with filled(url):
        kept_bytes = pruned(url).kept_bytes
        result = pruned(url, most_bytes=kept_bytes - 3_000)
    # Entry and head of a compaction have the same time; a head is some hundred bytes.
    assert there(url) in ([3, 4, 5, 6, 7, 8, 9], [4, 5, 6, 7, 8, 9])
    assert kept_bytes - 4_500 < result.kept_bytes <= kept_bytes - 3_000
    assert rows(url)["compactions"] == 10, "what was compacted is known for longer than what left"


def test_everything_goes_if_nothing_may_stay_and_then_it_is_done(url: URL) -> None:
    with filled(url):
        while pruned(url, most_bytes=0).more:
            pass
    assert (rows(url)["archive_texts"], rows(url)["archive_entries"], rows(url)["archive_heads"]) == (0, 0, 0)
    assert pruned(url, most_bytes=0) == Pruned(kept_bytes=0, more=False)


def test_a_round_is_bounded(url: URL) -> None:
    count = ROUND_ROWS + 30
    with filled(url, count=count):
        assert pruned(url, days=1, now=T0 + 1000 * DAY_S).more
        assert len(there(url, count=count)) >= 30
        while pruned(url, days=1, now=T0 + 1000 * DAY_S).more:
            pass
    assert set(rows(url).values()) == {0}


def test_another_homes_are_left_alone(url: URL) -> None:
    with filled(url):
        assert pruned(url, home_id="home-b", days=1, now=T0 + 1000 * DAY_S, most_bytes=0) == Pruned(
            kept_bytes=0, more=False
        )
    assert there(url) == list(range(10))


async def test_what_left_again_lives_on_from_then(url: URL) -> None:
    with archive(url) as kept:
        kept.keep(head("a"), (dense("x"),), compaction("t1"))
        kept.keep(head("b", at=T0 + 9 * DAY_S), (dense("x"),), compaction("t2", at=T0 + 9 * DAY_S))
        assert kept.flush(10)
        pruned(url, days=5, now=T0 + 10 * DAY_S)
        assert await kept.recall(dense("x").handle) is not None
        assert await kept.heads(ADA, S1) == (head("b", at=T0 + 9 * DAY_S),)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_archive_itself_keeps_to_its_cap_as_soon_as_it_is_passed(url: URL) -> None:
    with archive(url, most_bytes=20_000, prune_every_s=1e6) as kept:
        for number in range(40):
            kept.keep(head(f"h{number}"), (dense(f"x{number}"),), compaction(f"t{number}", at=T0 + number))
        assert kept.flush(10)
        until(lambda: (kept.health().bytes_kept or ALL) <= 20_000)
        assert there(url, count=40)[-1] == 39
        assert len(there(url, count=40)) > 10


def test_the_archive_itself_prunes_by_age_now_and_then(url: URL) -> None:
    clock = ManualClock(wall=T0)
    with archive(url, clock=clock, prune_every_s=0.02, days_of=lambda agent: 2) as kept:
        kept.keep(head("h"), (dense("x"),), compaction("t"))
        assert kept.flush(10)
        until(lambda: bool(kept.health().bytes_kept))
        clock.advance(3 * DAY_S)
        until(lambda: kept.health().bytes_kept == 0)
    assert set(rows(url).values()) == {0}


def test_upkeep_that_fails_stops_no_writing(url: URL, caplog: pytest.LogCaptureFixture) -> None:
    def fail(agent: AgentName) -> float:
        raise LookupError(agent)

    with archive(url, days_of=fail, prune_every_s=0.01) as kept:
        for number in range(3):
            kept.keep(head(f"h{number}"), (dense(f"x{number}"),), compaction(f"t{number}"))
            assert kept.flush(10)
        until(lambda: "upkeep failed" in caplog.text)
        assert kept.health().ok
    assert there(url, count=3) == [0, 1, 2]


@contextmanager
def plans_of(path: Path) -> Iterator[list[str]]:
    """What SQLite does for each statement about the archive: filled at the end of the block."""
    asked: list[tuple[str, Any]] = []
    plans: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if "archive_" in statement or "compactions" in statement:
            asked.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    with closing(sqlite3.connect(path)) as connection:
        for statement, parameters in asked:
            if statement.startswith(("SELECT", "DELETE")) and "sqlite_master" not in statement:
                plans.append(str(connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()))


def test_questions_are_answered_and_the_oldest_found_from_indexes(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "turns.db")
    with filled(url):
        pass
    reader = ArchiveReader(url, HOME)
    with plans_of(tmp_path / "turns.db") as recalling:
        for one in (reader, ArchiveReader(url)):
            assert one.recall(left("x3").handle) is not None
            assert one.recall(left("x3").handle, ADA) is not None
    assert sum("handle=?" in plan for plan in recalling) == 4
    with plans_of(tmp_path / "turns.db") as heads:
        assert reader.heads(ADA, SessionId("s3"), 8)
    assert all("session=?" in plan for plan in heads)
    with plans_of(tmp_path / "turns.db") as listing:
        assert reader.compactions()
        assert reader.compactions(ADA)
    assert all("ix_compactions_" in plan for plan in listing)
    with plans_of(tmp_path / "turns.db") as pruning:
        assert pruned(url, days=4.5, now=T0 + 9 * DAY_S, most_bytes=2_000).more
    assert len(pruning) > 10
    assert not [plan for plan in pruning if "B-TREE FOR" in plan]
    assert not [plan for plan in pruning if "SCAN" in plan.replace("SCAN compactions USING COVERING INDEX", "")]
    for plans in (recalling, heads):
        assert not [plan for plan in plans if "SCAN" in plan or "B-TREE FOR" in plan]

"""What the turn log keeps of the decisions about a turn, on each database it supports."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.store.database import engine_for
from governor.store.query import TurnLogReader
from governor.types import TurnId, Verdict
from tests.store_records import T0, closed, decided, opened, set_back, turn_log

WHOLE = decided(
    "t1",
    Verdict.QUEUED,
    at=T0 + 0.25,
    agent="bob",
    why="needs 5,000 KV tokens",
    position=2,
    waiting=3,
    running=4,
    needs_tokens=2**40,
    booked_tokens=6,
    free_tokens=0,
)


def test_decisions_are_kept_whole_and_in_order_before_and_after_the_end(url: URL) -> None:
    told = [WHOLE, decided("t1"), decided("t1", Verdict.FREED, at=T0 - 5)]
    with turn_log(url) as log:
        log.opened(opened("t1"))
        log.decided(told[0])
        assert log.flush(10)
        log.decided(told[1])
        log.decided(decided("t2"))
        log.closed(closed("t1"))
        assert log.flush(10)
        log.decided(told[2])
        assert log.flush(10)
        assert log.health().dropped == log.health().anomalies == 0
    reader = TurnLogReader(url)
    assert reader.decisions(TurnId("t1")) == told
    assert reader.decisions(TurnId("t2")) == [decided("t2")]
    assert reader.decisions(TurnId("t3")) == []


def test_a_decision_tried_again_after_a_commit_of_unknown_outcome_stands_once(url: URL) -> None:
    engine = engine_for(url)
    with turn_log(url, run_id="r") as log:
        log.decided(decided("t1"))
        assert log.flush(10)
    with turn_log(url, run_id="r") as again:  # numbers from 1, as the first did
        again.decided(decided("t1"))
        assert again.flush(10)
    with engine.connect() as connection, connection.begin():
        assert connection.execute(sa.text("SELECT count(*) FROM decisions")).scalar() == 1


def test_unusual_characters_are_stored_or_replaced(url: URL) -> None:
    with turn_log(url) as log:
        log.decided(decided("t1", why="a\0b \ud800 ü"))
        assert log.flush(10)
        assert log.health().dropped == 0
    [kept] = TurnLogReader(url).decisions(TurnId("t1"))
    assert kept.why == "a\ufffdb ? ü"


def test_a_log_of_before_decisions_is_read_and_brought_up_to_date(url: URL) -> None:
    with turn_log(url) as log:
        log.opened(opened("t1"))
        assert log.flush(10)
    set_back(url, "0002")
    reader = TurnLogReader(url)
    assert reader.decisions(TurnId("t1")) == []
    with turn_log(url) as log:
        log.decided(WHOLE)
        assert log.flush(10)
    assert reader.decisions(TurnId("t1")) == [WHOLE]
    assert reader.turn(TurnId("t1")) is not None


@pytest.mark.parametrize(
    ("prefix", "found"),
    [("t-", ["t-a1", "t-a2", "t-b1"]), ("t-a", ["t-a1", "t-a2"]), ("t-b1", ["t-b1"]), ("%", []), ("_", []), ("x", [])],
)
def test_turns_are_found_by_the_beginning_of_their_id(url: URL, prefix: str, found: list[str]) -> None:
    with turn_log(url) as log:
        for name in ("t-b1", "t-a2", "t-a1"):
            log.opened(opened(name))
        assert log.flush(10)
    assert TurnLogReader(url).with_prefix(prefix, 10) == found
    assert TurnLogReader(url).with_prefix(prefix, 1) == found[:1]

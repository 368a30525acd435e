"""What turns lost is kept beside their rows, on each database."""

from __future__ import annotations

from sqlalchemy.engine import URL

from governor.events import PrefixLost
from governor.store.backlog import Backlog
from governor.store.query import TurnLogReader
from governor.types import TurnId
from tests.store_records import T0, closed, opened, set_back, turn_log


def lost(turn_id: str, cause: str = "evicted", tokens: int | None = 500, **facts: object) -> PrefixLost:
    return PrefixLost(at=T0, turn_id=turn_id, agent="ada", cause=cause, tokens=tokens, **facts)  # type: ignore[arg-type]


def test_losses_come_back_as_they_were_the_dearest_first(url: URL) -> None:
    small = lost("t1", "volatile", 300, message=2**40, byte=7, detail="\0ü")
    dear = lost("t1", tokens=2**40, seconds=1.5, margin_s=0.25)
    open_price = lost("t1", "edited", None)
    with turn_log(url) as log:
        log.opened(opened("t1"))
        log.closed(closed("t1"))
        for loss in (small, open_price, dear, dear):
            log.lost(loss)
        log.opened(opened("t2"))
        assert log.flush(10)
        log.lost(dear)  # once more, after it was written
        assert log.flush(10)
        assert log.health().dropped == 0
    reader = TurnLogReader(url)
    by_id = {turn.turn_id: turn.losses for turn in reader.recent()}
    first, second, third = by_id[TurnId("t1")]
    assert (first, third) == (dear, open_price)
    assert (second.message, second.byte, second.detail) == (2**40, 7, "\ufffdü")
    assert by_id[TurnId("t2")] == ()
    found = reader.turn(TurnId("t1"))
    assert found is not None
    assert found.losses == by_id[TurnId("t1")]


def test_a_log_of_an_older_program_has_none(url: URL) -> None:
    with turn_log(url) as log:
        log.closed(closed("t1"))
        log.lost(lost("t1"))
        assert log.flush(10)
    set_back(url, "0004")
    (row,) = TurnLogReader(url).recent()
    assert row.losses == ()
    with turn_log(url) as log:
        log.lost(lost("t1"))
        assert log.flush(10)
    (row,) = TurnLogReader(url).recent()
    assert [loss.cause for loss in row.losses] == ["evicted"]


def test_a_loss_that_finds_no_room_is_counted() -> None:
    backlog = Backlog(capacity=2)
    for number in range(4):
        backlog.add_lost(lost("t1", f"cause{number}"))
    assert backlog.dropped == 2
    (entry,) = backlog.take(10)
    assert len(entry.lost) == 2
    backlog.add_lost(lost("t2"))
    assert backlog.dropped == 2

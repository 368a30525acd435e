"""The event log: a follower gets every event once, in order, or is told that some are gone."""

from __future__ import annotations

import pytest

from governor.events import Alert, EventLog, Gap, Numbered

CAPACITY = 4


def alert(number: int) -> Alert:
    return Alert(at=float(number), name="test", detail=str(number))


def log_with(events: int) -> EventLog:
    log = EventLog(CAPACITY)
    for number in range(1, events + 1):
        assert log.publish(alert(number)) == number
    return log


@pytest.mark.parametrize("published", range(10))
def test_everything_after_the_last_seen_comes_in_order_or_a_gap_says_what_is_lost(published: int) -> None:
    log = log_with(published)
    kept = [Numbered(number, alert(number)) for number in range(max(1, published - CAPACITY + 1), published + 1)]
    for last_seen in range(published + 1):
        news = log.since(last_seen)
        wanted = [numbered for numbered in kept if numbered.id > last_seen]
        if last_seen + 1 + len(wanted) > published:
            assert news == wanted
        else:
            assert news == [Numbered(kept[0].id - 1, Gap(at=0.0, after=last_seen)), *kept]


def test_a_place_from_another_life_is_a_gap() -> None:
    log = log_with(2)
    assert log.since(7) == [Numbered(0, Gap(at=0.0, after=7)), Numbered(1, alert(1)), Numbered(2, alert(2))]


async def test_a_follower_wakes_for_news_and_ends_with_the_log() -> None:
    log = log_with(1)
    with log.follower(0) as follower:
        assert await follower.next(timeout_s=5) == [Numbered(1, alert(1))]
        assert await follower.next(timeout_s=0.01) == []
        log.publish(alert(2))
        log.close()
        assert await follower.next(timeout_s=5) == [Numbered(2, alert(2))]
        assert await follower.next(timeout_s=5) is None

"""The event log: numbered, bounded, resumable; whoever falls behind is told."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.events import Alert, AnyEvent, EventLog, Gap, Numbered, TurnEnded
from governor.types import TurnState, Usage


def _alert(number: int) -> Alert:
    return Alert(at=float(number), name="n", detail=str(number))


def _filled(count: int, capacity: int = 8) -> EventLog:
    event_log = EventLog(capacity)
    for number in range(1, count + 1):
        assert event_log.publish(_alert(number)) == number
    return event_log


@given(count=st.integers(0, 30), capacity=st.integers(1, 10), last_seen=st.integers(0, 40))
def test_since(count: int, capacity: int, last_seen: int) -> None:
    event_log = _filled(count, capacity)
    news = event_log.since(last_seen)
    kept = range(max(1, count - capacity + 1), count + 1)
    if last_seen > count:  # an id of another life of the process
        assert news[0].event == Gap(at=0.0, after=last_seen)
        assert [numbered.id for numbered in news[1:]] == list(kept)
        return
    missed = last_seen + 1 < kept.start
    assert (bool(news) and isinstance(news[0].event, Gap)) == missed
    events = news[1:] if missed else news
    assert [numbered.id for numbered in events] == [number for number in kept if number > last_seen]
    assert [numbered.event for numbered in events] == [_alert(numbered.id) for numbered in events]
    ids = [numbered.id for numbered in news]
    assert ids == sorted(ids)


def test_resuming_from_the_id_of_a_gap_misses_nothing_more() -> None:
    event_log = _filled(20)
    gap, *rest = event_log.since(3)
    assert event_log.since(gap.id) == rest


async def test_a_follower_waits_and_gets_each_event_once() -> None:
    event_log = _filled(2)
    with event_log.follower(0) as follower:
        assert [numbered.id for numbered in await follower.next(1) or ()] == [1, 2]
        assert await follower.next(0.01) == []
        waiting = asyncio.create_task(follower.next(5))
        await asyncio.sleep(0)
        event_log.publish(_alert(3))
        assert await waiting == [Numbered(3, _alert(3))]


async def test_a_slow_follower_gets_a_gap() -> None:
    event_log = _filled(0, capacity=2)
    with event_log.follower(0) as follower:
        for number in range(1, 6):
            event_log.publish(_alert(number))
        news = await follower.next(1)
        assert news is not None
        assert [type(numbered.event) for numbered in news] == [Gap, Alert, Alert]


async def test_the_end() -> None:
    event_log = _filled(1)
    with event_log.follower(0) as follower, event_log.follower(1) as waiting_one:
        waiting = asyncio.create_task(waiting_one.next(5))
        await asyncio.sleep(0)
        event_log.close()
        event_log.close()
        assert event_log.closed
        assert await waiting in ([], None)
        assert await follower.next(1) == [Numbered(1, _alert(1))]
        assert await follower.next(1) is None


def test_followers_are_forgotten() -> None:
    event_log = _filled(0)
    with event_log.follower(0) as follower:
        pass
    event_log.publish(_alert(1))
    assert not follower.news.is_set()


@pytest.mark.parametrize(
    "event",
    [
        _alert(1),
        TurnEnded(at=1.0, turn_id="t", agent="a", state=TurnState.OK, usage=Usage(prompt_tokens=0)),
    ],
)
def test_events_survive_the_wire(event: AnyEvent) -> None:
    encoded = msgspec.json.encode(event)
    assert msgspec.json.decode(encoded)["event"] == type(event).__name__
    decoded: AnyEvent = msgspec.json.decode(encoded, type=AnyEvent)
    assert decoded == event

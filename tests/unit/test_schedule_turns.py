"""The turn scheduler, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from governor.policy.model import LimitPolicy
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    EngineChanged,
    EngineMode,
    TimePassed,
    TurnArrived,
    TurnEnded,
)
from governor.schedule.turns import TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from tests.scheduling import RecordedEffects


class Table:
    """A scheduler with its effects; ``now`` is moved by hand."""

    def __init__(self, slots: int | None = None, mode: EngineMode = EngineMode.READY) -> None:
        self.effects = RecordedEffects()
        self.scheduler = TurnScheduler(self.effects)
        self.now = 0.0
        self.scheduler.on_event(self.now, EngineChanged(mode, slots))

    def arrive(
        self,
        name: str,
        agent: str = "alice",
        kind: TurnKind = TurnKind.FINAL,
        agent_class: AgentClass = AgentClass.NORMAL,
        **limits: Any,
    ) -> None:
        turn = TurnArrived(
            turn_id=TurnId(name),
            agent=AgentName(agent),
            agent_class=agent_class,
            kind=kind,
            limits=LimitPolicy(**limits),
        )
        self.scheduler.on_event(self.now, turn)
        self.scheduler.check_integrity()

    def end(self, name: str) -> None:
        self.scheduler.on_event(self.now, TurnEnded(TurnId(name)))
        self.scheduler.check_integrity()

    def at(self, now: float) -> None:
        self.now = now
        self.scheduler.on_event(now, TimePassed())
        self.scheduler.check_integrity()

    @property
    def granted(self) -> str:
        return "".join(self.effects.granted)


def test_slots_are_never_exceeded_and_go_to_the_next_at_once() -> None:
    table = Table(slots=2)
    for name in "abcd":
        table.arrive(name, agent=name)
    assert table.granted == "ab"
    assert table.effects.queued == {"c": "all 2 engine slots are taken", "d": "all 2 engine slots are taken"}
    table.end("a")
    assert table.granted == "abc"
    table.end("b")
    table.end("c")
    table.end("d")
    assert (table.granted, table.scheduler.running, table.scheduler.waiting) == ("abcd", 0, 0)


def test_classes_go_first_to_last_and_each_in_order_of_arrival() -> None:
    table = Table(slots=1)
    table.arrive("x")
    for name, agent_class in (
        ("a", AgentClass.BACKGROUND),
        ("b", AgentClass.NORMAL),
        ("c", AgentClass.INTERACTIVE),
        ("d", AgentClass.NORMAL),
        ("e", AgentClass.INTERACTIVE),
    ):
        table.arrive(name, agent=name, agent_class=agent_class)
    for name in "xcebd":
        table.end(name)
    assert table.granted == "xcebda"


def test_one_agents_limit_does_not_hold_others_up() -> None:
    table = Table()
    table.arrive("a", concurrency=1)
    table.arrive("b", concurrency=1)
    table.arrive("c", agent="bob", concurrency=1)
    assert table.granted == "ac"
    assert table.effects.queued == {"b": "this agent runs 1 at once, its limit"}


def test_compactions_pass_the_agents_own_limits_but_not_the_engines() -> None:
    table = Table(slots=2)
    table.arrive("a", concurrency=1, queue=0, turns_per_minute=1)
    table.arrive("b", kind=TurnKind.COMPACTION, concurrency=1, queue=0, turns_per_minute=1)
    assert table.granted == "ab"
    table.arrive("c", kind=TurnKind.COMPACTION, concurrency=1, queue=0, turns_per_minute=1)
    assert table.granted == "ab"
    assert not table.effects.rejected
    table.end("a")
    assert table.granted == "abc"


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    table = Table(slots=1)
    for name in "abc":
        table.arrive(name, queue=1)
    assert table.granted == "a"
    refusal, reason, retry_after_s = table.effects.rejected[TurnId("c")]
    assert refusal is Refusal.BUSY
    assert "1 turns of this agent wait already" in reason
    assert retry_after_s == 5


def test_a_wait_ends_after_hold_s() -> None:
    table = Table(slots=1)
    table.arrive("a")
    table.now = 1.0
    table.arrive("b", hold_s=30.0)
    table.at(6.0)  # the moment from which an answer would be paused for it, if the engine could
    assert table.scheduler.next_deadline(table.now) == 31.0
    table.at(30.9)
    assert not table.effects.rejected
    table.at(31.0)
    assert table.effects.rejected[TurnId("b")][0] is Refusal.BUSY
    table.end("a")
    assert table.granted == "a"


def test_rate() -> None:
    table = Table()
    for name in "abc":
        table.arrive(name, turns_per_minute=2)
        table.end(name)
        table.now += 10
    assert table.granted == "ab"
    assert table.scheduler.next_deadline(table.now) is None
    table.arrive("d", turns_per_minute=2)
    table.at(35.0)
    assert table.scheduler.next_deadline(table.now) == 60.0
    table.at(59.9)
    assert table.granted == "ab"
    table.at(60.0)
    assert table.granted == "abd"


@pytest.mark.parametrize("granted_at", [0.30000000000000004, 1.7, 33.1])
def test_a_deadline_passes_once_however_times_are_rounded(granted_at: float) -> None:
    table = Table(slots=1)
    table.now = granted_at
    table.arrive("a", turns_per_minute=1)
    table.arrive("b", hold_s=1_000.0)  # waits for the place
    for _ in range(10):
        deadline = table.scheduler.next_deadline(table.now)
        assert deadline is not None
        if deadline > 61 + granted_at:
            break
        table.at(deadline)
    else:
        raise AssertionError("a deadline that never passes")


def test_a_late_arrival_does_not_overtake_one_that_waited_for_the_rate() -> None:
    table = Table()
    table.arrive("a", turns_per_minute=1)
    table.arrive("b", turns_per_minute=1)
    table.now = 60.5  # the owner task has not come round to tell that time has passed
    table.arrive("c", turns_per_minute=1)
    assert table.granted == "ab"


def test_turns_are_held_while_the_engine_comes_and_refused_when_it_is_down() -> None:
    table = Table(mode=EngineMode.COMING)
    table.arrive("a")
    assert table.effects.queued == {"a": "the engine is not ready yet"}
    table.scheduler.on_event(1, EngineChanged(EngineMode.READY))
    assert table.granted == "a"
    table.scheduler.on_event(2, EngineChanged(EngineMode.COMING))
    table.arrive("b")
    table.scheduler.on_event(3, EngineChanged(EngineMode.DOWN, detail="it crashed"))
    assert table.effects.rejected[TurnId("b")] == (Refusal.ENGINE_DOWN, "the engine is down: it crashed", 10)
    table.arrive("c")
    assert table.effects.rejected[TurnId("c")][0] is Refusal.ENGINE_DOWN
    assert table.scheduler.running == 1


def test_a_waiter_that_leaves_is_forgotten() -> None:
    table = Table(slots=1)
    for name in "abc":
        table.arrive(name)
    table.end("b")
    table.end("b")
    table.end("unknown")
    table.end("a")
    assert table.granted == "ac"


def test_fewer_slots_stop_new_turns_not_running_ones() -> None:
    table = Table(slots=3)
    for name in "abc":
        table.arrive(name)
    table.scheduler.on_event(1, EngineChanged(EngineMode.READY, 1))
    table.arrive("d")
    table.end("a")
    table.end("b")
    assert table.granted == "abc"
    table.end("c")
    assert table.granted == "abcd"


def test_an_arrival_is_taken_once() -> None:
    table = Table()
    table.arrive("a")
    with pytest.raises(ValueError, match="twice"):
        table.arrive("a")
    assert table.scheduler.running == 1

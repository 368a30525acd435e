"""What the owner does to the turn scheduler: agents held and released, turns that let others go first."""

from __future__ import annotations

from typing import Any

import pytest

from governor.budget.claim import Capacity, Claim, Segment
from governor.policy.model import LimitPolicy, SharePolicy, SlicePolicy
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    AgentHeld,
    AgentReleased,
    EngineChanged,
    EngineMode,
    SchedulerEvent,
    SliceAsked,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnStarted,
)
from governor.schedule.turns import HELD_RETRY_S, TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from tests.scheduling import RecordedEffects

WHY = "paused by the owner"


class Table:
    """A scheduler on an engine that can pause; ``now`` is moved by hand."""

    def __init__(self, slots: int | None = None, *, pauses: bool = True, tokens: int | None = 100_000) -> None:
        self.effects = RecordedEffects()
        self.scheduler = TurnScheduler(self.effects)
        self.now = 0.0
        self.claims: dict[str, Claim | None] = {}
        self.post(EngineChanged(EngineMode.READY, slots, capacity=Capacity(tokens=tokens), pauses=pauses))

    def post(self, event: SchedulerEvent) -> None:
        self.scheduler.on_event(self.now, event)
        self.scheduler.check_integrity()

    def arrive(
        self,
        name: str,
        agent: str = "alice",
        tokens: int | None = None,
        kind: TurnKind = TurnKind.FINAL,
        slices: bool = True,
        waiting_s: float = 20.0,
        **limits: Any,
    ) -> None:
        turn_id, owner = TurnId(name), AgentName(agent)
        claim = None
        if tokens is not None:
            claim = Claim(turn_id=turn_id, agent=owner, segments=(Segment(name.encode(), tokens),))
        self.claims[name] = claim
        self.post(
            TurnArrived(
                turn_id=turn_id,
                agent=owner,
                agent_class=AgentClass.NORMAL,
                kind=kind,
                limits=LimitPolicy(**limits),
                share=SharePolicy(waiting_s=waiting_s),
                slices=SlicePolicy(enabled=slices),
                claim=claim,
            )
        )

    def hold(self, agent: str = "alice", *, running: bool = False) -> None:
        self.post(AgentHeld(agent=AgentName(agent), reason=WHY, running=running))

    def release(self, agent: str = "alice") -> None:
        self.post(AgentReleased(AgentName(agent)))

    def stop(self, name: str) -> None:
        """The turn obeys."""
        assert TurnId(name) in self.effects.paused
        self.post(TurnPaused(turn_id=TurnId(name), claim=self.claims[name]))

    def end(self, name: str) -> None:
        self.post(TurnEnded(TurnId(name)))

    def at(self, now: float) -> None:
        """As the owner task does it: wake at each deadline, in turn."""
        for _ in range(1000):
            due = self.scheduler.next_deadline(self.now)
            if due is None or due > now:
                break
            self.now = max(self.now, due)
            self.post(TimePassed())
        else:
            raise AssertionError("deadlines that never pass")
        self.now = now
        self.post(TimePassed())

    def reason(self, name: str) -> str:
        standing = self.scheduler.standing(self.now, TurnId(name))
        assert standing is not None
        return standing.told_reason

    @property
    def granted(self) -> str:
        return "".join(self.effects.granted)


def test_turns_of_a_held_agent_wait_and_run_when_it_is_released() -> None:
    table = Table()
    table.hold()
    table.arrive("a")
    table.arrive("b", agent="bob")
    assert (table.granted, table.effects.queued) == ("b", {"a": WHY})
    table.release()
    assert table.granted == "ba"


def test_what_runs_and_what_waits_already_is_told_apart() -> None:
    table = Table(slots=1)
    table.arrive("a")
    table.arrive("b")
    table.hold()
    assert table.reason("b") == WHY
    assert not table.effects.paused
    table.end("a")
    assert table.granted == "a"
    table.hold()  # once more changes nothing
    table.release()
    table.release()
    assert table.granted == "ab"


def test_a_held_agent_keeps_nobody_else_waiting_however_long() -> None:
    table = Table(tokens=1000)
    table.arrive("x", agent="carol", tokens=900, slices=False)
    table.arrive("a", tokens=800)
    table.at(100.0)  # far beyond its budget: nobody would pass it
    table.arrive("b", agent="bob", tokens=50)
    assert table.granted == "x"
    table.hold()
    assert table.granted == "xb"
    table.arrive("c", agent="dora", tokens=20)
    assert table.granted == "xbc"


def test_nobody_is_paused_for_a_held_turn() -> None:
    table = Table(slots=1)
    table.arrive("x", agent="bob")
    table.post(TurnStarted(TurnId("x")))
    table.hold()
    table.arrive("a")
    table.at(500.0)
    assert not table.effects.paused


def test_a_held_turn_is_told_the_truth_when_its_time_is_over() -> None:
    table = Table()
    table.hold()
    table.arrive("a", hold_s=30.0)
    table.at(29.0)
    assert not table.effects.rejected
    table.at(30.0)
    assert table.effects.rejected == {"a": (Refusal.HELD, f"waited 30 s: {WHY}", HELD_RETRY_S)}
    assert table.scheduler.waiting == 0


def test_a_full_queue_of_a_held_agent_says_why() -> None:
    table = Table()
    table.hold()
    table.arrive("a", queue=1)
    table.arrive("b", queue=1)
    refusal, reason, _ = table.effects.rejected[TurnId("b")]
    assert (refusal, reason) == (Refusal.BUSY, f"1 turns of this agent wait already ({WHY})")


def test_a_held_compaction_waits_for_ever_and_is_lost_by_nobody() -> None:
    table = Table(slots=1)
    table.hold()
    table.arrive("a", kind=TurnKind.COMPACTION, hold_s=30.0)
    table.at(500.0)
    assert not table.effects.rejected
    table.arrive("x", agent="bob")
    table.release()
    table.at(529.0)
    assert not table.effects.rejected
    table.end("x")
    assert table.granted == "xa"


def test_a_released_agent_does_not_go_before_all_others() -> None:
    table = Table(slots=1)
    table.hold()
    table.arrive("a", waiting_s=20.0)
    table.arrive("x", agent="carol")
    table.at(90.0)
    table.arrive("b", agent="bob", waiting_s=20.0)
    table.at(100.0)
    table.release()
    table.at(112.0)  # bob's budget is over, and alice's began at her release
    table.end("x")
    assert table.granted == "xb"
    table.at(121.0)
    table.arrive("c", agent="dora")
    table.end("b")
    assert table.granted == "xba"


def test_answers_that_run_are_paused_when_that_is_asked() -> None:
    table = Table()
    table.arrive("a")
    table.arrive("b", slices=False)
    table.arrive("c", agent="bob")
    table.hold(running=True)
    assert table.effects.paused == {"a": WHY}
    table.stop("a")
    assert (table.granted, table.effects.queued) == ("abc", {"a": WHY})
    table.at(5000.0)  # it has begun, so it is never refused
    assert not table.effects.rejected
    table.release()
    assert table.granted == "abca"


def test_answers_that_have_begun_go_on_when_only_new_ones_are_held() -> None:
    table = Table(tokens=1000)
    table.arrive("a", tokens=800)
    table.post(TurnStarted(TurnId("a")))
    table.arrive("b", agent="bob", tokens=800)
    table.at(40.0)
    table.stop("a")
    table.hold()
    table.end("b")
    assert table.granted == "aba"


def test_running_answers_of_a_held_agent_can_be_paused_later() -> None:
    table = Table()
    table.arrive("a")
    table.hold()
    assert not table.effects.paused
    table.hold(running=True)
    assert table.effects.paused == {"a": WHY}
    table.hold(running=True)
    table.stop("a")
    table.hold()  # back to new ones only: what had begun goes on
    assert table.granted == "aa"


def test_an_engine_that_cannot_pause_is_not_asked_to() -> None:
    table = Table(pauses=False)
    table.arrive("a")
    table.hold(running=True)
    table.post(SliceAsked(TurnId("a"), WHY))
    assert not table.effects.paused
    assert table.scheduler.cannot_pause(TurnId("a")) == "its engine cannot go on with an answer"


def test_a_held_turn_that_is_not_waited_for_leaves_nothing() -> None:
    table = Table()
    table.hold()
    table.arrive("a")
    table.end("a")
    assert (table.scheduler.waiting, table.scheduler.running) == (0, 0)
    table.release()
    assert table.granted == ""


def test_a_sliced_turn_lets_those_go_first_that_wait() -> None:
    """Also one that would go before them: its agent has had nothing lately, and theirs much."""
    table = Table(slots=1)
    table.arrive("x", agent="bob", waiting_s=900.0)
    table.at(100.0)
    table.end("x")
    table.effects.granted.clear()
    table.arrive("a")
    for name in "bc":
        table.arrive(name, agent="bob")
    table.post(SliceAsked(TurnId("a"), "the owner lets others go first"))
    table.post(SliceAsked(TurnId("a"), "twice"))
    assert table.effects.paused == {"a": "the owner lets others go first"}
    table.stop("a")
    assert table.granted == "ab"
    table.arrive("d", agent="dora")
    for ended, then in (("b", "abd"), ("d", "abdc"), ("c", "abdca")):
        table.end(ended)
        assert table.granted == then


def test_why_a_sliced_turn_waits_is_told() -> None:
    table = Table(tokens=1000)
    table.arrive("a", tokens=100)
    table.arrive("x", agent="carol", tokens=500, slices=False)
    table.arrive("b", agent="bob", tokens=450)
    table.post(SliceAsked(TurnId("a"), "x"))
    table.stop("a")
    assert table.granted == "axb"
    table.arrive("c", agent="dora", tokens=900)
    table.post(SliceAsked(TurnId("b"), "x"))
    table.stop("b")
    assert table.reason("b") == "the owner lets others go first"


def test_a_sliced_turn_goes_on_at_once_when_nobody_waits() -> None:
    table = Table()
    table.arrive("a")
    table.post(SliceAsked(TurnId("a"), "x"))
    table.stop("a")
    assert table.granted == "aa"


def test_a_sliced_turn_goes_on_in_the_same_moment_as_the_last_it_lets_pass() -> None:
    table = Table(slots=2)
    table.arrive("a")
    table.arrive("x", agent="carol")
    table.arrive("b", agent="bob")
    table.post(SliceAsked(TurnId("a"), "x"))
    table.end("x")
    assert table.granted == "axb"
    table.arrive("c", agent="bob", concurrency=1)
    table.stop("a")
    assert table.granted == "axba", "who is at its own limit lets it pass"


def test_a_sliced_turn_is_let_in_together_with_those_it_lets_pass() -> None:
    table = Table(slots=1)
    table.arrive("a")
    table.arrive("b", agent="bob")
    table.post(SliceAsked(TurnId("a"), "x"))
    table.post(EngineChanged(EngineMode.COMING, pauses=True))
    table.stop("a")
    table.post(EngineChanged(EngineMode.READY, 2, pauses=True))
    assert table.granted == "aba"


@pytest.mark.parametrize("held", [True, False])
def test_two_sliced_turns_do_not_wait_for_each_other(held: bool) -> None:
    table = Table(slots=1)
    table.arrive("a")
    table.arrive("b", agent="bob")
    table.post(SliceAsked(TurnId("a"), "x"))
    table.stop("a")
    assert table.granted == "ab"
    table.post(SliceAsked(TurnId("b"), "x"))
    if held:
        table.hold("alice", running=True)
    table.stop("b")
    assert table.granted == ("abb" if held else "aba")


def test_slicing_what_does_not_run_changes_nothing() -> None:
    table = Table(slots=1)
    table.arrive("a")
    table.arrive("b", slices=False)
    for name, why in (("b", "it does not run"), ("nobody", "it does not run")):
        table.post(SliceAsked(TurnId(name), "x"))
        assert table.scheduler.cannot_pause(TurnId(name)) == why
    table.end("a")
    why = table.scheduler.cannot_pause(TurnId("b")) or ""
    assert why.startswith("it has to be one generation")
    assert not table.effects.paused

"""Whatever happens in whatever order: no turn too many runs, none that could run waits, and every wait ends."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from governor.clock import ManualClock
from governor.policy.model import LimitPolicy
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    AgentHeld,
    AgentReleased,
    EngineChanged,
    EngineMode,
    SchedulerEvent,
    TimePassed,
    TurnArrived,
    TurnEnded,
)
from governor.schedule.turns import TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from tests.scheduling import RecordedEffects

_AGENTS = st.sampled_from([AgentName("alice"), AgentName("bob")])
_LIMITS = st.builds(
    LimitPolicy,
    concurrency=st.integers(1, 3),
    turns_per_minute=st.none() | st.integers(1, 3),
    queue=st.integers(0, 4),
    hold_s=st.sampled_from([5.0, 200.0, 600.0]),
)
_MINUTE_S = 60.0
_CLASSES = list(AgentClass)


class Scheduling(RuleBasedStateMachine):
    """The model: what runs, what waits, and when each agent was let in."""

    @initialize(data=st.data())
    def _begin(self, data: st.DataObject) -> None:
        self.clock = ManualClock()
        self.effects = RecordedEffects()
        self.scheduler = TurnScheduler(self.effects)
        self.limits = {name: data.draw(_LIMITS) for name in ("alice", "bob")}
        self.classes = {name: data.draw(st.sampled_from(_CLASSES)) for name in self.limits}
        self.engine = EngineChanged(EngineMode.READY)
        self.scheduler.on_event(self.clock.monotonic(), self.engine)
        self.arrived: dict[TurnId, TurnArrived] = {}
        self.since: dict[TurnId, float] = {}
        self.running: set[TurnId] = set()
        self.waiting: list[TurnId] = []
        self.ended: set[TurnId] = set()
        self.let_in: dict[str, list[float]] = {name: [] for name in self.limits}
        self.held: set[AgentName] = set()

    def _post(self, event: SchedulerEvent) -> None:
        """Post an event, and take the outcomes over one by one, each checked against the model before it."""
        granted, rejected = len(self.effects.granted), set(self.effects.rejected)
        self.scheduler.on_event(self.clock.monotonic(), event)
        self.scheduler.check_integrity()
        for turn_id in set(self.effects.rejected) - rejected:
            self._on_rejected(turn_id)
        for turn_id in self.effects.granted[granted:]:
            self._on_granted(turn_id)

    def _on_granted(self, turn_id: TurnId) -> None:
        turn = self.arrived[turn_id]
        assert turn_id not in self.ended
        assert self._hindrance(turn) is None
        for other_id in self.waiting:
            other = self.arrived[other_id]
            passes = turn.kind is TurnKind.COMPACTION and other.kind is not TurnKind.COMPACTION
            if other_id != turn_id and other.agent == turn.agent and not passes:
                earlier = self.since[other_id] < self.since[turn_id]
                assert not earlier or self._hindrance(other) is not None, f"{turn_id} overtook {other_id}"
        if turn_id in self.waiting:
            self.waiting.remove(turn_id)
        self.running.add(turn_id)
        self.let_in[turn.agent].append(self.clock.monotonic())

    def _on_rejected(self, turn_id: TurnId) -> None:
        turn = self.arrived[turn_id]
        refusal, _, retry_after_s = self.effects.rejected[turn_id]
        assert retry_after_s >= 5
        assert (refusal is Refusal.ENGINE_DOWN) == (self.engine.mode is EngineMode.DOWN)
        waited = self.clock.monotonic() - self.since[turn_id]
        if refusal is Refusal.BUSY and turn_id not in self.waiting:
            queued = sum(1 for other in self.waiting if self.arrived[other].agent == turn.agent)
            assert queued >= turn.limits.queue
            assert turn.kind is not TurnKind.COMPACTION
        elif refusal is not Refusal.ENGINE_DOWN:
            assert (refusal is Refusal.HELD) == (turn.agent in self.held)
            assert waited >= turn.limits.hold_s
            assert refusal is Refusal.BUSY or turn.kind is not TurnKind.COMPACTION
        if turn_id in self.waiting:
            self.waiting.remove(turn_id)

    def _hindrance(self, turn: TurnArrived) -> str | None:
        if turn.agent in self.held:
            return "held"
        if self.engine.mode is not EngineMode.READY:
            return "engine"
        if self.engine.slots is not None and len(self.running) >= self.engine.slots:
            return "slots"
        if turn.kind is TurnKind.COMPACTION:
            return None
        if sum(1 for other in self.running if self.arrived[other].agent == turn.agent) >= turn.limits.concurrency:
            return "concurrency"
        now = self.clock.monotonic()
        lately = sum(1 for moment in self.let_in[turn.agent] if now - moment < _MINUTE_S)
        if turn.limits.turns_per_minute is not None and lately >= turn.limits.turns_per_minute:
            return "rate"
        return None

    @rule(
        agent=_AGENTS,
        kind=st.sampled_from([TurnKind.FINAL, TurnKind.FINAL, TurnKind.COMPACTION]),
        late_s=st.sampled_from([0.0, 0.0, 0.0, 2.0, 61.0]),
    )
    def arrive(self, agent: AgentName, kind: TurnKind, late_s: float) -> None:
        """A busy event loop may bring the arrival ``late_s`` after the last event, deadlines in between missed."""
        self.clock.advance(late_s)
        turn = TurnArrived(
            turn_id=TurnId(f"t{len(self.arrived)}"),
            agent=agent,
            agent_class=self.classes[agent],
            kind=kind,
            limits=self.limits[agent],
        )
        self.arrived[turn.turn_id], self.since[turn.turn_id] = turn, self.clock.monotonic()
        self._post(turn)
        outcomes = [turn.turn_id in some for some in (self.running, self.effects.queued, self.effects.rejected)]
        assert outcomes.count(True) == 1
        if turn.turn_id in self.effects.queued:
            queued = sum(1 for other in self.waiting if self.arrived[other].agent == agent)
            assert queued < turn.limits.queue or kind is TurnKind.COMPACTION
            self.waiting.append(turn.turn_id)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A running turn closes, or a waiting client leaves."""
        turn_id = data.draw(st.sampled_from(sorted([*self.running, *self.waiting])))
        self.running.discard(turn_id)
        if turn_id in self.waiting:
            self.waiting.remove(turn_id)
        self.ended.add(turn_id)
        self._post(TurnEnded(turn_id))

    @rule(turn_id=st.sampled_from([TurnId("nobody"), TurnId("t0")]))
    def end_of_nothing(self, turn_id: TurnId) -> None:
        """The end of a turn that is not there, or not any more."""
        if turn_id not in self.running and turn_id not in self.waiting:
            self._post(TurnEnded(turn_id))

    @rule(mode=st.sampled_from([*EngineMode, *[EngineMode.READY] * 3]), slots=st.none() | st.integers(1, 4))
    def engine_changes(self, mode: EngineMode, slots: int | None) -> None:
        self.engine = EngineChanged(mode, slots)
        self._post(self.engine)

    @rule(agent=_AGENTS, limits=_LIMITS)
    def policy_changes(self, agent: AgentName, limits: LimitPolicy) -> None:
        """Turns keep the limits they began with, so this changes later ones only."""
        if not any(self.arrived[other].agent == agent for other in self.waiting):
            self.limits[agent] = limits

    @rule(agent=_AGENTS)
    def hold(self, agent: AgentName) -> None:
        self.held.add(agent)
        self._post(AgentHeld(agent=agent, reason="paused"))

    @rule(agent=_AGENTS)
    def release(self, agent: AgentName) -> None:
        now = self.clock.monotonic()
        for turn_id in self.waiting if agent in self.held else ():
            turn = self.arrived[turn_id]
            if turn.agent == agent and now - self.since[turn_id] >= turn.limits.hold_s:
                self.since[turn_id] = now  # a compaction that was kept beyond its time
        self.held.discard(agent)
        self._post(AgentReleased(agent))

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 61.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        """As the owner task does it: wake at each deadline, in turn."""
        target = self.clock.monotonic() + seconds
        for _ in range(200):
            deadline = self.scheduler.next_deadline(self.clock.monotonic())
            if deadline is None or deadline > target:
                break
            self.clock.advance(max(0.0, deadline - self.clock.monotonic()))
            self._post(TimePassed())
        else:
            raise AssertionError("deadlines that never pass")
        self.clock.advance(target - self.clock.monotonic())
        self._post(TimePassed())

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            assert (self.scheduler.running, self.scheduler.waiting) == (len(self.running), len(self.waiting))

    @invariant()
    def nobody_waits_who_could_run_or_has_waited_enough(self) -> None:
        now = self.clock.monotonic() if hasattr(self, "clock") else 0.0
        for turn_id in getattr(self, "waiting", ()):
            turn: Any = self.arrived[turn_id]
            assert self._hindrance(turn) is not None
            kept = turn.agent in self.held and turn.kind is TurnKind.COMPACTION
            assert kept or now - self.since[turn_id] < turn.limits.hold_s


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

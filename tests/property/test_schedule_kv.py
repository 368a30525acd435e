"""The scheduler and its ledger under any interleaving: arrivals, growth, pauses, vanishing clients, lost aborts, engine
restarts, policy reloads, an owner who pauses. The engine here is a model that keeps what it was granted until it is
told otherwise."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from governor.budget.claim import Capacity, Claim, Segment, Sight
from governor.budget.ledger import GRACE_S
from governor.clock import ManualClock
from governor.policy.model import LimitPolicy, SharePolicy, SlicePolicy
from governor.schedule.events import (
    AgentHeld,
    AgentReleased,
    EngineChanged,
    EngineMode,
    EngineSeen,
    FloorsChanged,
    SchedulerEvent,
    SliceAsked,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnStarted,
    TurnWrote,
)
from governor.schedule.turns import TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from tests.scheduling import RecordedEffects

CAPACITY = 100_000
AGENTS = [AgentName(name) for name in ("ann", "bob", "cid")]
SLICES = SlicePolicy(quantum_s=10.0, yield_after_s=4.0, lookahead=2_000)
LIMITS = LimitPolicy(queue=1_000, hold_s=80_000.0, concurrency=3)


class KvScheduling(RuleBasedStateMachine):
    """The model keeps each turn's claim by hand."""

    @initialize(slots=st.none() | st.integers(2, 4), pauses=st.booleans(), floor=st.sampled_from([0, 0, 20_000]))
    def begin(self, slots: int | None, pauses: bool, floor: int) -> None:
        self.clock = ManualClock()
        self.effects = RecordedEffects()
        self.scheduler = TurnScheduler(self.effects)
        self.slots, self.pauses = slots, pauses
        self.turns: dict[TurnId, TurnArrived] = {}
        self.claims: dict[TurnId, Claim] = {}
        self.running: set[TurnId] = set()
        self.waiting: dict[TurnId, float] = {}
        self.lost: dict[TurnId, tuple[float, Claim]] = {}
        """Ended here, still in the engine."""
        self.wrote: dict[TurnId, int] = {}
        self.post(self.ready())
        self.post(FloorsChanged({AGENTS[0]: floor}))

    def ready(self, *, anew: bool = False) -> EngineChanged:
        capacity = Capacity(tokens=CAPACITY)
        return EngineChanged(EngineMode.READY, self.slots, capacity=capacity, pauses=self.pauses, anew=anew)

    def post(self, event: SchedulerEvent) -> None:
        before = len(self.effects.granted)
        self.scheduler.on_event(self.clock.monotonic(), event)
        self.scheduler.check_integrity()
        for turn_id in self.effects.granted[before:]:
            assert turn_id not in self.running, "granted twice"
            self.running.add(turn_id)
            self.waiting.pop(turn_id, None)
            self.wrote[turn_id] = 0

    @rule(
        agent=st.sampled_from(AGENTS),
        agent_class=st.sampled_from(AgentClass),
        prompt=st.sampled_from([100, 5_000, 30_000, 60_000, 95_000, 130_000]),
        shared=st.sampled_from([0, 0, 20_000]),
        resident=st.sampled_from([0, 4_000]),
        waiting_s=st.sampled_from([None, 8.0, 60.0]),
        ceiling=st.sampled_from([None, None, 30_000]),
        most=st.sampled_from([None, 1_000, 4_000]),
        session=st.sampled_from([None, None, "s"]),
    )
    def arrive(
        self,
        agent: AgentName,
        agent_class: AgentClass,
        prompt: int,
        shared: int,
        resident: int,
        waiting_s: float | None,
        ceiling: int | None,
        most: int | None,
        session: str | None,
    ) -> None:
        turn_id = TurnId(f"t{len(self.turns)}")
        own = Segment(turn_id.encode(), prompt)
        segments = (Segment(b"head", shared), own) if shared else (own,)
        claim = Claim(turn_id=turn_id, agent=agent, segments=segments, output_tokens=1_000, most_output_tokens=most)
        turn = TurnArrived(
            turn_id=turn_id,
            agent=agent,
            agent_class=agent_class,
            kind=TurnKind.FINAL,
            limits=LIMITS,
            share=SharePolicy(waiting_s=waiting_s, ceiling_tokens=ceiling),
            slices=SLICES,
            claim=claim,
            resident_tokens=resident,
            session=None if session is None else f"{agent}/{session}",
        )
        self.turns[turn_id], self.claims[turn_id] = turn, claim
        self.waiting[turn_id] = self.clock.monotonic()
        self.post(turn)
        if turn_id in self.effects.rejected:
            assert claim.tokens > CAPACITY
            del self.waiting[turn_id]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.sampled_from([10, 900, 2_500]))
    def write(self, data: st.DataObject, tokens: int) -> None:
        turn_id = data.draw(st.sampled_from(sorted(self.running)))
        self.wrote[turn_id] += tokens
        self.post(TurnStarted(turn_id))
        self.post(TurnWrote(turn_id, self.wrote[turn_id]))

    @precondition(lambda self: self.effects.paused)
    @rule(data=st.data(), confirmed=st.booleans())
    def obey(self, data: st.DataObject, *, confirmed: bool) -> None:
        """A turn that was asked to has stopped."""
        turn_id = data.draw(st.sampled_from(sorted(self.effects.paused)))
        self.running.discard(turn_id)
        claim = self.claims[turn_id]
        prompt = claim.prompt_tokens + self.wrote[turn_id]
        own = Segment(turn_id.encode() + b"+%d" % len(self.effects.granted), prompt)
        self.claims[turn_id] = msgspec.structs.replace(claim, segments=(own,))
        self.waiting[turn_id] = self.clock.monotonic()
        self.post(TurnPaused(turn_id=turn_id, claim=self.claims[turn_id], confirmed=confirmed))

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), is_lost=st.booleans())
    def end(self, data: st.DataObject, is_lost: bool) -> None:
        """It closes, or its client leaves; the abort may be lost on its way."""
        turn_id = data.draw(st.sampled_from(sorted([*self.running, *self.waiting])))
        if is_lost and turn_id in self.running:
            self.lost[turn_id] = (self.clock.monotonic(), self.claims[turn_id])
        self.running.discard(turn_id)
        self.waiting.pop(turn_id, None)
        self.effects.paused.pop(turn_id, None)
        self.post(TurnEnded(turn_id, confirmed=turn_id not in self.lost))

    @rule(drops=st.booleans(), used=st.sampled_from([None, 0, 50_000, 90_000]))
    def look(self, drops: bool, used: int | None = None) -> None:
        """The engine tells its load; it may have dropped what was aborted, and have others' requests."""
        if drops:
            self.lost.clear()
        now = self.clock.monotonic()
        self.post(EngineSeen(sight=Sight(asked_at=now, running=len(self.running) + len(self.lost), used_tokens=used)))

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def slice(self, data: st.DataObject) -> None:
        """Whatever has become of the turn."""
        self.post(SliceAsked(data.draw(st.sampled_from(sorted(self.turns))), "the owner asks"))

    @rule(agent=st.sampled_from(AGENTS), running=st.booleans())
    def hold(self, agent: AgentName, running: bool) -> None:
        before = len(self.effects.granted)
        self.post(AgentHeld(agent=agent, reason="paused", running=running))
        assert not any(self.turns[turn_id].agent == agent for turn_id in self.effects.granted[before:]) or not running

    @rule(agent=st.sampled_from(AGENTS))
    def release(self, agent: AgentName) -> None:
        self.post(AgentReleased(agent))

    @rule()
    def engine_restarts(self) -> None:
        """Everything in it is gone; each turn ends by its own exit."""
        self.post(EngineChanged(EngineMode.COMING, detail="it died"))
        for turn_id in sorted(self.running):
            self.running.discard(turn_id)
            self.effects.paused.pop(turn_id, None)
            self.post(TurnEnded(turn_id, confirmed=False))
        self.lost.clear()
        self.post(self.ready(anew=True))

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        target = self.clock.monotonic() + seconds
        for _ in range(500):
            deadline = self.scheduler.next_deadline(self.clock.monotonic())
            if deadline is None or deadline > target:
                break
            self.clock.advance(max(0.0, deadline - self.clock.monotonic()))
            self.post(TimePassed())
        else:
            raise AssertionError("deadlines that never pass")
        self.clock.advance(target - self.clock.monotonic())
        self.post(TimePassed())

    @invariant()
    def never_over_committed(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.ledger.held_tokens <= CAPACITY
        assert (self.scheduler.running, self.scheduler.waiting) == (len(self.running), len(self.waiting))
        if self.slots is not None:
            assert len(self.running) <= self.slots

    @invariant()
    def nobody_is_paused_by_an_engine_that_cannot(self) -> None:
        if hasattr(self, "scheduler") and not self.pauses:
            assert not self.effects.paused

    def teardown(self) -> None:
        """Nobody starves: with turns that end and obey, everybody who waits comes to run; and nothing is left."""
        if not hasattr(self, "scheduler"):
            return
        self.clock.advance(GRACE_S)
        self.lost.clear()
        for agent in AGENTS:
            self.release(agent=agent)
        self.look(drops=True, used=0)
        self.time_passes(seconds=1.0)
        for _ in range(len(self.turns) * 4 + 4):
            if not self.running:
                break
            for turn_id in sorted(self.running):
                self.running.discard(turn_id)
                self.effects.paused.pop(turn_id, None)
                self.post(TurnEnded(turn_id))
        assert not self.waiting, f"left waiting: {self.scheduler.standings(self.clock.monotonic())}"
        assert self.scheduler.ledger.held_tokens == 0


TestKvScheduling = KvScheduling.TestCase
TestKvScheduling.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)

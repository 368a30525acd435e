"""Retention under any interleaving of turns, pauses, fetches, restarts and time; and tool times of any kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from governor.budget.claim import Capacity, Claim, Segment
from governor.policy.model import LimitPolicy, SharePolicy
from governor.schedule.events import EngineChanged, EngineMode, Left, TurnArrived, TurnEnded, TurnPaused
from governor.schedule.retention import Retention
from governor.schedule.toolclock import ToolClock
from governor.types import AgentClass, AgentName, TurnId, TurnKind

CAPACITY = 100_000
AGENT = AgentName("ann")
CONTEXTS = st.sampled_from(["c1", "c2", "c3", "c4", "c5"])
TOKENS = st.integers(1, 60_000)
TIMES = st.floats(0.0, 1e6, allow_nan=False)


@given(st.lists(TIMES, min_size=5, max_size=60), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6), TIMES)
def test_quantiles_never_fall(seconds: list[float], shares: list[float], beyond_s: float) -> None:
    clock = ToolClock()
    for each in seconds:
        clock.on_return(AGENT, "bash", each)
    returns = clock.expected(AGENT, "bash")
    assert returns is not None
    found = [returns.quantile(share, beyond_s=beyond_s) for share in sorted(shares)]
    assert found == sorted(found)
    assert all(each >= beyond_s for each in found)
    assert returns.quantile(0.5, beyond_s=beyond_s) >= returns.quantile(0.5)
    chances = [returns.chance(beyond_s, within_s) for within_s in (0.0, 1.0, 60.0, 3600.0)]
    assert chances == sorted(chances)
    assert all(0.0 <= chance <= 1.0 + 1e-9 for chance in chances)


class Resting(RuleBasedStateMachine):
    """Plays a host that does as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.retention = Retention()
        self.now = 0.0
        self.count = 0
        self.waiting: dict[TurnId, TurnArrived] = {}
        self.running: dict[TurnId, TurnArrived] = {}
        self.change(anew=False)

    @rule(anew=st.booleans())
    def change(self, anew: bool) -> None:
        self.retention.on_event(
            self.now, EngineChanged(EngineMode.READY, capacity=Capacity(tokens=CAPACITY), anew=anew)
        )

    @rule(context=CONTEXTS, tokens=TOKENS, quota=st.sampled_from([None, 0, 50_000]), fetches=st.booleans())
    def arrive(self, context: str, tokens: int, quota: int | None, fetches: bool) -> None:
        self.count += 1
        turn_id = TurnId(f"t{self.count}")
        turn = TurnArrived(
            turn_id=turn_id,
            agent=AGENT,
            agent_class=AgentClass.NORMAL,
            kind=TurnKind.TOOL_STEP,
            limits=LimitPolicy(),
            share=SharePolicy(prewarm=True, retained_tokens=quota),
            claim=Claim(turn_id=turn_id, agent=AGENT, segments=(Segment(b"x", tokens),)),
            context=context,
            prefix_tokens=tokens // 2,
            fetches=fetches,
        )
        told = self.retention.on_event(self.now, turn)
        assert isinstance(told, TurnArrived)
        assert told.resident_tokens in {0, turn.prefix_tokens}
        if quota == 0 or self.held() > CAPACITY:
            assert told.resident_tokens == 0
        self.waiting[turn_id] = told

    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        if self.waiting:
            turn_id = data.draw(st.sampled_from(sorted(self.waiting)))
            self.running[turn_id] = self.waiting.pop(turn_id)
            self.retention.on_granted(turn_id)

    @rule(data=st.data(), tokens=TOKENS)
    def pause(self, data: st.DataObject, tokens: int) -> None:
        if self.running:
            turn_id = data.draw(st.sampled_from(sorted(self.running)))
            self.waiting[turn_id] = self.running.pop(turn_id)
            claim = Claim(turn_id=turn_id, agent=AGENT, segments=(Segment(b"x", tokens),))
            self.retention.on_event(self.now, TurnPaused(turn_id=turn_id, claim=claim))

    @rule(data=st.data(), tokens=st.none() | TOKENS, cached=st.none() | TOKENS)
    def end(self, data: st.DataObject, tokens: int | None, cached: int | None) -> None:
        known = self.waiting | self.running
        if known:
            turn_id = data.draw(st.sampled_from(sorted(known)))
            self.waiting.pop(turn_id, None)
            self.running.pop(turn_id, None)
            left = None if tokens is None else Left(tokens=tokens, cached_tokens=cached, tool="bash")
            self.retention.on_event(self.now, TurnEnded(turn_id, left=left))

    @rule(seconds=st.floats(0.0, 5000.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(held=st.integers(0, 2 * CAPACITY))
    def ask_who_is_to_be_fetched(self, held: int) -> None:
        rest = self.retention.to_fetch(self.now, held_tokens=held, having={"c1", "c2", "c3"})
        if rest is not None:
            assert rest.context in {"c1", "c2", "c3"}
            assert rest.tokens + held <= CAPACITY
            assert not self.retention.recency.holds(rest.context)

    def held(self) -> int:
        """At least: one context may be held by several turns."""
        return max((turn.tokens for turn in self.running.values()), default=0)

    @invariant()
    def books_agree(self) -> None:
        self.retention.check_integrity()
        assert len(self.retention.resting()) <= 5


TestResting = Resting.TestCase

"""Whatever is asked of the engine model on tight pools: everybody ends once, the books hold, and how often somebody
looks changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serve.twin.cost import Cost
from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Admitted, Ask, Ended, EngineEvent, EngineSettings, QueuePolicy, Retracted, Wrote
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import EvictionPolicy, HostMode, PrefetchPolicy, StateStrategy, TierSettings, WritePolicy

FAR = 1e6
"""Seconds after which nothing can be under way any more."""
TEXTS = 4


@st.composite
def engines(draw: st.DrawFn) -> tuple[EngineSettings, Cost]:
    """Pools of a few requests, and costs whose sums are no round numbers."""
    page = draw(st.sampled_from((1, 10)))
    strategy = StateStrategy.EXTRA_BUFFER if page > 1 else draw(st.sampled_from(StateStrategy))
    tiers = TierSettings(
        device_tokens=draw(st.sampled_from((200, 300, 600))),
        device_slots=draw(st.sampled_from((0, 5, 9, 14, 30))),
        host_tokens=draw(st.sampled_from((0, 300, 900))),
        host_slots=draw(st.sampled_from((3, 20))),
        host_mode=draw(st.sampled_from(HostMode)),
        window_tokens=draw(st.sampled_from((0, 150))),
        storage_tokens=draw(st.sampled_from((0, None, 500))),
        page_tokens=page,
        state_chunk_tokens=10,
        track_interval_tokens=20,
        strategy=strategy,
        write_policy=draw(st.sampled_from(WritePolicy)),
        eviction=draw(st.sampled_from(EvictionPolicy)),
        prefetch_policy=draw(st.sampled_from(PrefetchPolicy)),
        prefetch_tokens=10,
        prefetch_timeout_base_s=draw(st.sampled_from((0.1, 3.0))),
    )
    priority = draw(st.booleans())
    engine = EngineSettings(
        tiers=tiers,
        context_tokens=draw(st.sampled_from((150, 400))),
        max_running_requests=draw(st.integers(1, 4)),
        max_queued_requests=draw(st.sampled_from((None, 2))),
        chunked_prefill_tokens=draw(st.sampled_from((20, 40, 1000))),
        max_prefill_tokens=draw(st.sampled_from((30, 200))),
        mixed_chunk=draw(st.booleans()),
        prefill_decode_interval=draw(st.sampled_from((None, 1, 3))),
        queue_policy=QueuePolicy.FCFS if priority else draw(st.sampled_from(QueuePolicy)),
        priority_scheduling=priority,
        lower_priority_first=draw(st.booleans()),
        schedule_conservativeness=draw(st.sampled_from((0.1, 1.0))),
        accept_length=draw(st.sampled_from((1.0, 1.3, 2.7))),
    )
    cost = Cost(
        prefill_token_s=0.0113,
        prefill_square_s=1.7e-6,
        decode_step_s=0.0317,
        decode_request_s=0.00271,
        decode_kv_token_s=1.3e-6,
        request_s=0.0173,
        host_read_token_s=0.0007,
        host_write_token_s=draw(st.sampled_from((0.0009, 0.09))),
        storage_read_token_s=0.0031,
        storage_read_s=0.0191,
        storage_write_token_s=draw(st.sampled_from((0.0023, 0.2))),
    )
    return engine, cost


class Talk:
    """Texts that grow, branch and are said again, so that the tiers have something to find."""

    def __init__(self) -> None:
        self.texts = [Key([(number, 0, 30 + 25 * number)]) for number in range(TEXTS)]
        self.rids: list[str] = []

    def ask(
        self, text: int, share: float, new_tokens: int, writes: int, limit: int, priority: int, accept: float | None
    ) -> Ask:
        number = len(self.rids)
        base = self.texts[text]
        prompt = base.cut(0, max(1, int(len(base) * share))) + Key([(1000 + number, 0, new_tokens)])
        output = Key([(5000 + number, 0, writes)])
        self.texts[text] = prompt + output
        self.rids.append(f"q{number}")
        return Ask(
            rid=self.rids[-1],
            prompt=prompt,
            output=output,
            writes_tokens=writes,
            max_new_tokens=limit,
            priority=priority,
            accept_length=accept,
        )


ASKS: dict[str, Any] = {
    "text": st.integers(0, TEXTS - 1),
    "share": st.sampled_from((0.3, 1.0, 1.0)),
    "new_tokens": st.sampled_from((0, 10, 60)),
    "writes": st.integers(0, 120),
    "limit": st.sampled_from((5, 60, 130)),
    "priority": st.integers(0, 30),
    "accept": st.sampled_from((None, 1.9)),
}


class Witness:
    """Checks each event against those before it."""

    def __init__(self) -> None:
        self.at = 0.0
        self.written: dict[str, int] = {}
        self.runs: set[str] = set()
        self.ended: dict[str, Ended] = {}

    def see(self, events: list[EngineEvent]) -> None:
        for event in events:
            assert event.at >= self.at
            self.at = event.at
            assert event.rid not in self.ended
            match event:
                case Admitted():
                    assert event.rid not in self.runs
                    self.runs.add(event.rid)
                case Wrote():
                    assert event.rid in self.runs
                    assert event.start == self.written.get(event.rid, 0) < event.stop
                    self.written[event.rid] = event.stop
                case Retracted():
                    self.runs.remove(event.rid)
                case Ended():
                    self.ended[event.rid] = event
                    self.runs.discard(event.rid)
                    assert event.completion_tokens == self.written.get(event.rid, 0)
                    assert event.cached.tokens < event.prompt_tokens


class Machine(RuleBasedStateMachine):
    @initialize(drawn=engines())
    def start(self, drawn: tuple[EngineSettings, Cost]) -> None:
        self.twin = TwinEngine(*drawn)
        self.talk = Talk()
        self.witness = Witness()

    @rule(delay=st.floats(0, 2), **ASKS)
    def submit(self, delay: float, **asked: Any) -> None:
        self.twin.submit(self.twin.now + delay, self.talk.ask(**asked))

    @rule(delay=st.floats(0, 2), back=st.integers(0, 5))
    def abort(self, delay: float, back: int) -> None:
        rids = self.talk.rids
        self.twin.abort(self.twin.now + delay, rids[-1 - back] if back < len(rids) else "nobody")

    @rule(seconds=st.floats(0, 5))
    def run_on(self, seconds: float) -> None:
        self.witness.see(self.twin.run(self.twin.now + seconds))

    @rule()
    def run_to_next(self) -> None:
        when = self.twin.next_at()
        if when is not None:
            self.witness.see(self.twin.run(when))

    @rule()
    def flush(self) -> None:
        idle = not self.twin.tiers.requests and len(self.witness.ended) == len(self.talk.rids)
        assert self.twin.flush() == idle

    @invariant()
    def books_hold(self) -> None:
        if not hasattr(self, "twin"):
            return
        self.twin.tiers.check_integrity()
        load = self.twin.load()
        limits = self.twin.settings
        assert 0 <= load.used_tokens <= load.held_tokens <= load.capacity_tokens
        assert 0 <= load.used_slots <= load.capacity_slots
        assert load.running == len(self.witness.runs) <= limits.max_running_requests
        assert load.waiting <= (limits.max_queued_requests or load.waiting)
        assert 0 <= load.new_token_ratio <= 1

    def teardown(self) -> None:
        if not hasattr(self, "twin"):
            return
        self.witness.see(self.twin.run(self.twin.now + FAR))
        assert self.twin.next_at() is None
        assert set(self.witness.ended) == set(self.talk.rids)
        assert not self.witness.runs
        self.twin.tiers.check_integrity()
        assert (self.twin.load().used_tokens, self.twin.load().used_slots, self.twin.load().waiting) == (0, 0, 0)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@st.composite
def plays(draw: st.DrawFn) -> list[tuple[float, Ask | str]]:
    """When who is asked or aborted."""
    talk = Talk()
    actions: list[tuple[float, Ask | str]] = []
    at = 0.0
    for _ in range(draw(st.integers(2, 20))):
        at += draw(st.floats(0.001, 3))
        if talk.rids and draw(st.integers(0, 4)) == 0:
            actions.append((at, draw(st.sampled_from(talk.rids))))
        else:
            actions.append((at, talk.ask(**{name: draw(strategy) for name, strategy in ASKS.items()})))
    return actions


def played(drawn: tuple[EngineSettings, Cost], play: list[tuple[float, Ask | str]], step: float) -> list[EngineEvent]:
    twin = TwinEngine(*drawn)
    for at, what in play:
        if isinstance(what, Ask):
            twin.submit(at, what)
        else:
            twin.abort(at, what)
    events: list[EngineEvent] = []
    while twin.next_at() is not None:
        events += twin.run(twin.now + step)
    return events


def told(events: list[EngineEvent]) -> list[EngineEvent]:
    """What does not depend on when somebody looked, its time to the microsecond."""
    return [
        msgspec.structs.replace(event, at=round(event.at, 6))
        if not isinstance(event, Admitted)
        else msgspec.structs.replace(event, at=round(event.at, 6), waited_s=round(event.waited_s, 6))
        for event in events
        if not isinstance(event, Wrote)
    ]


@given(drawn=engines(), play=plays(), step=st.sampled_from((0.137, 1.9)))
@settings(max_examples=50, deadline=None)
def test_looking_often_changes_nothing(
    drawn: tuple[EngineSettings, Cost], play: list[tuple[float, Ask | str]], step: float
) -> None:
    leap = played(drawn, play, FAR)
    assert leap == played(drawn, play, FAR)
    often = played(drawn, play, step)
    assert told(often) == told(leap)
    witness = Witness()
    witness.see(often)

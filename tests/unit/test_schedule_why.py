"""What the scheduler says of those that wait: their order, their reasons now, and what it tells nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from governor.budget.claim import Capacity, Claim, Segment, Sight
from governor.budget.ledger import GRACE_S, Freed
from governor.clock import ManualClock
from governor.errors import TooManyTurns
from governor.events import TurnDecided
from governor.policy.model import LimitPolicy, SharePolicy
from governor.schedule.events import EngineChanged, EngineMode, EngineSeen, TimePassed, TurnArrived, TurnEnded
from governor.schedule.line import queue_view
from governor.schedule.loop import Admission
from governor.schedule.queue import LOOK_AHEAD
from governor.schedule.turns import TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind, Verdict
from tests.scheduling import RecordedEffects

CAPACITY = Capacity(tokens=100_000)


def arrival(
    name: str, tokens: int, *, agent: str = "", agent_class: AgentClass = AgentClass.NORMAL, queue: int = 64
) -> TurnArrived:
    turn_id, owner = TurnId(name), AgentName(agent or f"agent-{name}")
    claim = Claim(turn_id=turn_id, agent=owner, segments=(Segment(name.encode(), tokens),))
    return TurnArrived(
        turn_id=turn_id,
        agent=owner,
        agent_class=agent_class,
        kind=TurnKind.FINAL,
        limits=LimitPolicy(queue=queue),
        share=SharePolicy(waiting_s=20.0),
        claim=claim,
    )


def scheduler(*turns: TurnArrived) -> tuple[TurnScheduler, RecordedEffects]:
    """After these have arrived, at 0."""
    effects = RecordedEffects()
    made = TurnScheduler(effects)
    made.on_event(0.0, EngineChanged(EngineMode.READY, capacity=CAPACITY))
    for turn in turns:
        made.on_event(0.0, turn)
    return made, effects


def test_those_that_wait_stand_in_the_order_in_which_they_are_looked_at() -> None:
    made, _ = scheduler(
        arrival("a", 90_000),
        arrival("b", 30_000, agent_class=AgentClass.BACKGROUND),
        arrival("c", 20_000),
        arrival("d", 15_000, agent_class=AgentClass.INTERACTIVE),
    )
    standings = made.standings(1.0)
    assert [(each.position, each.waiting.turn.turn_id) for each in standings] == [(1, "d"), (2, "c"), (3, "b")]
    assert standings[1].reason == "needs 20,000 KV tokens, 10,000 more than are free"
    one = made.standing(1.0, TurnId("c"))
    assert one == standings[1]
    assert made.standing(1.0, TurnId("a")) is None
    assert made.standing(1.0, TurnId("none")) is None


def test_all_turns_of_an_agent_are_in_line_be_they_ever_so_many() -> None:
    many = LOOK_AHEAD + 3
    made, _ = scheduler(arrival("a", 90_000), *(arrival(f"b{n}", 20_000, agent="bob") for n in range(many)))
    assert [each.waiting.turn.turn_id for each in made.standings(1.0)] == [f"b{n}" for n in range(many)]


def test_the_place_of_one_is_its_place_among_all() -> None:
    classes = [*AgentClass]
    made, _ = scheduler(arrival("x", 95_000))
    for n in range(60):
        turn = arrival(f"t{n}", 20_000, agent=f"agent{n % 7}", agent_class=classes[n * n % 3])
        turn = msgspec.structs.replace(turn, resident_tokens=n * 37 % 5 * 1_000, share=SharePolicy(waiting_s=n * 13.0))
        made.on_event(float(n), turn)
    for now in (60.0, 200.0, 600.0, 900.0):
        made.on_event(now, TimePassed())
        standings = made.standings(now)
        assert [each.position for each in standings] == list(range(1, 1 + len(standings)))
        assert [made.standing(now, each.waiting.turn.turn_id) for each in standings] == standings
    assert len(standings) < 60  # some were sent away meanwhile


def test_a_reason_is_that_of_the_moment() -> None:
    made, _ = scheduler(arrival("a", 50_000), arrival("b", 45_000), arrival("c", 60_000))
    reasons = [made.standings(1.0)[0].reason]
    made.on_event(2.0, TurnEnded(TurnId("a"), confirmed=False))
    reasons.append(made.standings(3.0)[0].reason)
    made.on_event(4.0, EngineSeen(sight=Sight(asked_at=3.0, running=1)))
    reasons.append(made.standings(4.0)[0].reason)
    assert reasons == [
        "needs 60,000 KV tokens, 55,000 more than are free",
        "needs 60,000 KV tokens, 55,000 more than are free",
        "needs 60,000 KV tokens, 5,000 more than are free",
    ]
    made.on_event(5.0, EngineChanged(EngineMode.COMING, capacity=CAPACITY))
    assert made.standings(5.0)[0].reason == "the engine is not ready yet"


def test_who_goes_first_is_named_to_the_owner_alone() -> None:
    made, effects = scheduler(arrival("a", 50_000), arrival("big", 90_000))
    made.on_event(21.0, TimePassed())
    made.on_event(22.0, arrival("small", 10_000))
    assert effects.queued[TurnId("small")] == "agent-big has waited 22 s for room and goes first"
    small = made.standing(23.0, TurnId("small"))
    assert small is not None
    assert small.position == 2
    assert small.reason == "agent-big has waited 23 s for room and goes first"
    assert small.told_reason == "another turn has waited 23 s for room and goes first"
    made.on_event(24.0, arrival("more", 10_000, queue=0))
    assert "another turn has waited 24 s" in effects.rejected[TurnId("more")][1]
    big = made.standing(25.0, TurnId("big"))
    assert big is not None
    assert big.reason == big.told_reason == "needs 90,000 KV tokens, 40,000 more than are free"


def test_a_lease_taken_back_is_told_once_with_the_cause() -> None:
    made, effects = scheduler(arrival("a", 50_000))
    made.on_event(1.0, TurnEnded(TurnId("a"), confirmed=False))
    made.on_event(1.0 + GRACE_S, TimePassed())
    made.on_event(2.0 + GRACE_S, TimePassed())
    assert effects.taken_back == [Freed(TurnId("a"), AgentName("agent-a"), "not confirmed within 15 s")]


def test_the_view_has_unix_times_and_the_ledgers_figures() -> None:
    made, _ = scheduler(arrival("a", 60_000), arrival("b", 70_000))
    for at in (4.0, 5.0):
        made.on_event(at, EngineSeen(sight=Sight(asked_at=at, running=1, used_tokens=61_000)))
    view = queue_view(made, now=7.0, wall=1_007.0)
    [lease], [waiting] = view.leases, view.waiting
    assert (lease.turn_id, lease.agent, lease.since, lease.booked_tokens) == ("a", "agent-a", 1_000.0, 60_000)
    assert not lease.leaving
    assert (waiting.turn_id, waiting.position, waiting.since, waiting.due) == ("b", 1, 1_000.0, 1_020.0)
    assert (waiting.needs_tokens, waiting.paused) == (70_000, False)
    assert (view.booked_tokens, view.foreign_tokens, view.free_tokens) == (60_000, 1_000, 39_000)
    assert view.capacity_tokens == 100_000
    made.on_event(8.0, TurnEnded(TurnId("a"), confirmed=False))
    assert queue_view(made, now=8.0, wall=1_008.0).leases[0].leaving
    assert msgspec.json.decode(msgspec.json.encode(view), type=type(view)) == view


class Heard:
    """An admission whose decisions are kept."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.decisions: list[TurnDecided] = []
        self.admission = Admission(self.clock, self.decisions.append)

    def verdicts(self, turn_id: str) -> list[Verdict]:
        return [each.verdict for each in self.decisions if each.turn_id == turn_id]


@asynccontextmanager
async def heard() -> AsyncIterator[Heard]:
    made = Heard()
    owner = asyncio.create_task(made.admission.run())
    made.admission.set_engine(EngineMode.READY, capacity=CAPACITY, pauses=True)
    try:
        yield made
    finally:
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


async def steps(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_each_decision_is_told_once_with_its_figures() -> None:
    async with heard() as h:

        async def second() -> None:
            async with h.admission.lease(arrival("b", 50_000), lambda _: None):
                pass

        async with h.admission.lease(arrival("a", 60_000), lambda _: None):
            waiting = asyncio.create_task(second())
            await steps()
            assert h.admission.place_in_line(TurnId("b")) == (
                "waiting 1 of 1: needs 50,000 KV tokens, 10,000 more than are free"
            )
            assert h.admission.place_in_line(TurnId("a")) is None
            h.clock.advance(2.0)
            with pytest.raises(TooManyTurns):
                async with h.admission.lease(arrival("c", 50_000, queue=0), lambda _: None):
                    raise AssertionError("was let in")
        await waiting
        granted, queued, refused, later = h.decisions
        assert granted == TurnDecided(
            at=h.clock.wall() - 2.0,
            turn_id="a",
            agent="agent-a",
            verdict=Verdict.GRANTED,
            why="runs after 0.0 s; 60,000 KV tokens booked, 40,000 free",
            waiting=0,
            running=1,
            needs_tokens=60_000,
            booked_tokens=60_000,
            free_tokens=40_000,
        )
        assert (queued.turn_id, queued.verdict, queued.position) == ("b", Verdict.QUEUED, 1)
        assert (queued.needs_tokens, queued.waiting, queued.running) == (50_000, 1, 1)
        assert (refused.turn_id, refused.verdict, refused.position) == ("c", Verdict.REFUSED, None)
        assert refused.needs_tokens == 50_000
        assert (later.verdict, later.why[:16], later.free_tokens) == (Verdict.GRANTED, "runs after 2.0 s", 50_000)


async def test_a_pause_is_told_as_three_decisions() -> None:
    async with heard() as h:

        async def big() -> None:
            async with h.admission.lease(arrival("big", 90_000), lambda _: None):
                pass

        async with h.admission.lease(arrival("a", 60_000), lambda _: None) as lease:
            lease.on_started()
            waiting = asyncio.create_task(big())
            await steps()
            h.clock.advance(25.0)
            h.admission.on_sight(Sight(asked_at=h.clock.monotonic()))
            await asyncio.wait_for(lease.asked_to_pause.wait(), 5)
            await lease.paused(lease.turn.claim, confirmed=True, clock=h.clock)
        await waiting
        assert h.verdicts("a") == [Verdict.GRANTED, Verdict.PAUSE_ASKED, Verdict.PAUSED, Verdict.RESUMED]
        asked, paused, resumed = [each for each in h.decisions if each.turn_id == "a"][1:]
        assert asked.why.startswith("agent-big has waited 25 s: needs 90,000 KV tokens")
        assert paused.position is not None
        assert paused.needs_tokens == 60_000
        assert resumed.why.startswith("goes on after 0.0 s")


async def test_a_place_taken_back_is_told_although_its_turn_is_over() -> None:
    async with heard() as h:
        async with h.admission.lease(arrival("a", 60_000), lambda _: None) as lease:
            lease.confirmed = False
        await steps()
        h.clock.advance(GRACE_S)
        h.admission.on_sight(Sight(asked_at=0.0))
        await steps()
        freed = h.decisions[-1]
        assert (freed.verdict, freed.turn_id, freed.agent) == (Verdict.FREED, "a", "agent-a")
        assert (freed.why, freed.booked_tokens) == ("not confirmed within 15 s", 0)

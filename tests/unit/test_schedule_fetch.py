"""A conversation at rest is fetched by a turn like any other, that gives way to all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from governor.budget.claim import Capacity, Claim, Segment
from governor.clock import ManualClock
from governor.errors import TooManyTurns
from governor.policy.model import LimitPolicy, SharePolicy, SlicePolicy
from governor.schedule.events import EngineMode, Left, TurnArrived
from governor.schedule.loop import Admission, Lease
from governor.schedule.retention import FETCH_LIMITS
from governor.schedule.toolclock import ENOUGH
from governor.types import AgentClass, AgentName, TurnId, TurnKind

L1 = 100_000
ALICE = "alice/1"


def turn(name: str, context: str, tokens: int, *, fetches: bool = False) -> TurnArrived:
    turn_id, agent = TurnId(name), AgentName(context.partition("/")[0])
    return TurnArrived(
        turn_id=turn_id,
        agent=agent,
        agent_class=AgentClass.BACKGROUND if fetches else AgentClass.NORMAL,
        kind=TurnKind.BACKGROUND if fetches else TurnKind.TOOL_STEP,
        limits=FETCH_LIMITS if fetches else LimitPolicy(),
        share=SharePolicy(prewarm=True),
        slices=SlicePolicy(enabled=False),
        claim=Claim(turn_id=turn_id, agent=agent, segments=(Segment(name.encode(), tokens),)),
        context=context,
        prefix_tokens=tokens,
        fetches=fetches,
    )


class Play:
    """Turns on an admission whose clock stands still."""

    def __init__(self, admission: Admission, clock: ManualClock) -> None:
        self.admission, self.clock = admission, clock
        self.open = AsyncExitStack()
        self._count = 0

    async def begin(self, context: str, tokens: int, *, fetches: bool = False) -> Lease:
        self._count += 1
        arrived = turn(f"t{self._count}", context, tokens, fetches=fetches)
        return await self.open.enter_async_context(self.admission.lease(arrived, lambda _reason: None))

    async def whole(self, context: str, tokens: int, tool: str) -> None:
        self._count += 1
        async with self.admission.lease(turn(f"t{self._count}", context, tokens), lambda _reason: None) as lease:
            lease.left = Left(tokens=tokens, tool=tool)
        await settled()

    def to_fetch(self) -> str | None:
        rest = self.admission.to_fetch({ALICE})
        return None if rest is None else rest.context


@asynccontextmanager
async def alice_is_out() -> AsyncIterator[Play]:
    """Alice's tool takes 20 s; it runs, and others have used all of L1 since."""
    clock = ManualClock()
    admission = Admission(clock)
    owner = asyncio.create_task(admission.run())
    admission.set_engine(EngineMode.READY, 2, capacity=Capacity(tokens=L1))
    play = Play(admission, clock)
    try:
        for _ in range(ENOUGH + 1):
            await play.whole(ALICE, 40_000, "bash")
            clock.advance(20.0)
        await play.whole(ALICE, 40_000, "bash")
        await play.whole("bob/1", 80_000, "nobody knows")
        async with play.open:
            yield play
        await settled()
        admission.check_integrity()
    finally:
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_is_out_and_expected_is_fetched() -> None:
    async with alice_is_out() as play:
        assert play.to_fetch() == ALICE
        lease = await play.begin(ALICE, 40_000, fetches=True)
        await settled()
        assert not lease.asked_to_pause.is_set()
        assert play.to_fetch() is None


async def test_nobody_is_fetched_while_somebody_waits() -> None:
    async with alice_is_out() as play:
        await play.begin("bob/1", 10_000)
        await play.begin("carol/1", 10_000)
        assert play.to_fetch() == ALICE
        waits = asyncio.create_task(play.begin("dave/1", 10_000))
        await settled()
        assert play.admission.waiting == 1
        assert play.to_fetch() is None
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await settled()
        assert play.to_fetch() == ALICE


async def test_held_agents_are_not_fetched_and_keep_nobody_from_it() -> None:
    async with alice_is_out() as play:
        play.admission.hold(AgentName("alice"), "paused")
        await settled()
        assert play.to_fetch() is None
        play.admission.release(AgentName("alice"))
        play.admission.hold(AgentName("dave"), "paused")
        waits = asyncio.create_task(play.begin("dave/1", 10_000))
        await settled()
        assert play.admission.waiting == 1
        assert play.to_fetch() == ALICE
        play.admission.hold(AgentName("alice"), "paused")
        with pytest.raises(TooManyTurns):  # it was chosen a moment before
            await play.begin(ALICE, 40_000, fetches=True)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


async def test_nobody_is_fetched_into_room_that_turns_hold() -> None:
    async with alice_is_out() as play:
        await play.begin("bob/1", 70_000)
        assert play.to_fetch() is None


async def test_a_fetch_is_refused_rather_than_queued() -> None:
    async with alice_is_out() as play:
        await play.begin("bob/1", 10_000)
        await play.begin("carol/1", 10_000)
        with pytest.raises(TooManyTurns):
            await play.begin(ALICE, 40_000, fetches=True)


async def test_any_turn_stops_a_fetch_and_runs() -> None:
    async with alice_is_out() as play:
        fetch = turn("fetch", ALICE, 40_000, fetches=True)
        async with play.admission.lease(fetch, lambda _reason: None) as lease:
            waits = asyncio.create_task(play.begin("carol/1", 90_000))
            await settled()
            assert lease.asked_to_pause.is_set()
            assert "carol" in lease.pause_reason
        async with asyncio.timeout(1):
            await waits

"""The owner task: leases are given, waited for and given back on every exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from governor.budget.claim import Capacity, Claim, Segment
from governor.clock import ManualClock, SystemClock
from governor.errors import GovernorError, InternalError, TooManyTurns, UpstreamUnavailable
from governor.events import TurnDecided
from governor.policy.model import LimitPolicy, SharePolicy
from governor.schedule.events import EngineMode, SchedulerEvent, TurnArrived, TurnPaused, TurnStarted
from governor.schedule.loop import Admission, Lease
from governor.types import AgentClass, AgentName, TurnId, TurnKind, Verdict


def _turn(name: str, **limits: Any) -> TurnArrived:
    return TurnArrived(
        turn_id=TurnId(name),
        agent=AgentName("alice"),
        agent_class=AgentClass.NORMAL,
        kind=TurnKind.FINAL,
        limits=LimitPolicy(**limits),
    )


def _not_queued(reason: str) -> None:
    raise AssertionError(f"was queued: {reason}")


@asynccontextmanager
async def _admission(
    slots: int | None = None,
    mode: EngineMode = EngineMode.READY,
    on_decision: Callable[[TurnDecided], None] = lambda _: None,
) -> AsyncIterator[Admission]:
    admission = Admission(SystemClock(), on_decision)
    owner = asyncio.create_task(admission.run())
    admission.set_engine(mode, slots)
    try:
        yield admission
        await _quiet(admission)
        admission.check_integrity()
        assert not owner.done()
    finally:
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


async def _quiet(admission: Admission) -> None:
    """Until nothing runs and nothing waits."""
    async with asyncio.timeout(5):
        while admission.running or admission.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _hold(admission: Admission, name: str) -> None:
    """Take a lease and keep it."""
    async with admission.lease(_turn(name), lambda _reason: None):
        await asyncio.Event().wait()


async def _turns(count: int = 10) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lease_is_held_and_given_back() -> None:
    async with _admission() as admission:
        async with admission.lease(_turn("a"), _not_queued) as lease:
            assert (lease.turn.turn_id, admission.running) == ("a", 1)
            assert 0 <= lease.waited_s < 1
        await _quiet(admission)


async def test_a_waiter_is_told_why_and_gets_the_next_place() -> None:
    async with _admission(slots=1) as admission:
        told: list[str] = []
        order: list[str] = []

        async def second() -> None:
            async with admission.lease(_turn("b"), told.append):
                order.append("b")

        async with admission.lease(_turn("a"), _not_queued):
            waiting = asyncio.create_task(second())
            await _turns()
            assert (admission.running, admission.waiting) == (1, 1)
            order.append("a")
        await waiting
        assert told == ["all 1 engine slots are taken"]
        assert order == ["a", "b"]


async def test_refusals() -> None:
    async with _admission(slots=1) as admission, admission.lease(_turn("a"), _not_queued):
        with pytest.raises(TooManyTurns, match="wait already") as busy:
            async with admission.lease(_turn("b", queue=0), _not_queued):
                raise AssertionError("was let in")
        assert busy.value.retry_after_s == 5
        assert "context" not in busy.value.message
        with pytest.raises(TooManyTurns, match="waited 0 s"):
            async with admission.lease(_turn("c", hold_s=0.02), lambda reason: None):
                raise AssertionError("was let in")
        admission.set_engine(EngineMode.DOWN, detail="it crashed")
        with pytest.raises(UpstreamUnavailable, match="it crashed") as down:
            async with admission.lease(_turn("d"), _not_queued):
                raise AssertionError("was let in")
        assert down.value.retry_after_s == 10


async def test_the_first_token_is_told_once_a_grant() -> None:
    posted: list[SchedulerEvent] = []
    lease = Lease(_turn("a"), _not_queued, posted.append)
    for _ in range(2):
        for _ in range(3):
            lease.on_started()
        paused = asyncio.create_task(lease.paused(None, confirmed=True, clock=SystemClock()))
        await _turns(1)
        lease.granted.set_result(None)
        await paused
    assert [type(event) for event in posted] == [TurnStarted, TurnPaused] * 2


async def test_what_was_asked_before_a_pause_is_not_asked_of_what_follows() -> None:
    async with _admission() as admission, admission.lease(_turn("a"), _not_queued) as lease:
        lease.on_queued = lambda _: None
        paused = asyncio.create_task(lease.paused(None, confirmed=True, clock=SystemClock()))
        await _turns(1)
        admission.pause(lease.turn.turn_id, "somebody waits")  # before the scheduler has heard of it
        await paused
        assert not lease.asked_to_pause.is_set()


async def test_a_turn_on_which_the_scheduler_fails_is_told_and_leaves_nothing(caplog: Any) -> None:
    """A weight that no policy can have."""
    broken = msgspec.structs.replace(_turn("a"), share=SharePolicy(weight=0.0))
    async with _admission(slots=1) as admission:
        with pytest.raises(InternalError):
            async with admission.lease(broken, _not_queued):
                raise AssertionError("was let in")
        async with admission.lease(_turn("b"), _not_queued):
            waiting = asyncio.create_task(_take(admission, msgspec.structs.replace(broken, turn_id=TurnId("c"))))
            await _turns()
            assert admission.waiting == 1
        with pytest.raises(InternalError):
            await waiting
        async with admission.lease(_turn("d"), _not_queued):
            pass
    assert "the turn scheduler failed" in caplog.text


async def _take(admission: Admission, turn: TurnArrived) -> None:
    async with admission.lease(turn, lambda reason: None):
        pass


@pytest.mark.parametrize("steps", range(6))
async def test_a_waiter_cancelled_at_any_moment_leaves_nothing(steps: int) -> None:
    """Before it is queued, while it waits, while its grant is on the way, and while it runs."""
    async with _admission(slots=1) as admission:
        running = asyncio.Event()

        async def take(name: str) -> None:
            async with admission.lease(_turn(name), lambda reason: None):
                running.set()
                await asyncio.sleep(10)

        first = asyncio.create_task(take("a"))
        await running.wait()
        second = asyncio.create_task(take("b"))
        await _turns(4)
        first.cancel()
        await _turns(steps)
        second.cancel()
        for task in (first, second):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await _quiet(admission)
        async with admission.lease(_turn("c"), _not_queued):
            pass


async def test_a_turn_that_fails_gives_its_place_back() -> None:
    async with _admission(slots=1) as admission:
        with pytest.raises(ZeroDivisionError):
            async with admission.lease(_turn("a"), _not_queued):
                raise ZeroDivisionError
        async with admission.lease(_turn("b"), lambda reason: None):
            assert admission.running == 1


async def test_a_listener_that_fails_does_not_stop_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="governor")
    caplog.set_level(logging.ERROR)
    async with _admission(slots=1) as admission:

        def fails(reason: str) -> None:
            raise ValueError(reason)

        async with admission.lease(_turn("a"), _not_queued):
            waiting = asyncio.create_task(_in_and_out(admission, fails))
            await _turns()
        await waiting


async def _in_and_out(admission: Admission, on_queued: Callable[[str], None]) -> None:
    async with admission.lease(_turn("b"), on_queued):
        pass


async def test_turns_wait_until_the_engine_is_first_told() -> None:
    admission = Admission(ManualClock())
    owner = asyncio.create_task(admission.run())
    told: list[str] = []

    async def run() -> float:
        async with admission.lease(_turn("a"), told.append) as lease:
            return lease.waited_s

    waiting = asyncio.create_task(run())
    await _turns()
    assert told == ["the engine is not ready yet"]
    admission.set_engine(EngineMode.READY)
    assert await waiting == 0.0
    owner.cancel()
    await asyncio.gather(owner, return_exceptions=True)


class Ended(GovernorError):
    """Ends a turn from outside."""


async def test_a_turn_that_waits_is_ended_from_outside() -> None:
    decided: list[TurnDecided] = []
    async with _admission(slots=1, on_decision=decided.append) as admission, admission.lease(_turn("a"), _not_queued):
        waits = asyncio.create_task(_hold(admission, "b"))
        await _turns()
        assert admission.cancel(TurnId("b"), Ended("enough")) is True
        assert admission.cancel(TurnId("b"), Ended("twice")) is False
        with pytest.raises(Ended, match="enough"):
            await waits
        assert admission.cancel(TurnId("b"), Ended("late")) is False
        await _turns()
        assert admission.waiting == 0
    assert [(each.turn_id, each.why) for each in decided if each.verdict is Verdict.REFUSED] == [("b", "enough")]


async def test_a_turn_that_runs_is_ended_from_outside_and_its_task_lives() -> None:
    async with _admission() as admission:

        async def ended_while_it_runs() -> None:
            async with admission.lease(_turn("a"), _not_queued):
                assert admission.cancel(TurnId("a"), Ended("enough"))
                await asyncio.sleep(10)

        with pytest.raises(Ended):
            await ended_while_it_runs()
        await asyncio.sleep(0)  # is not cancelled
        await _quiet(admission)
        async with admission.lease(_turn("a"), _not_queued):
            pass


async def test_a_paused_turn_is_ended_from_outside() -> None:
    async with _admission() as admission:

        async def paused() -> None:
            async with admission.lease(_turn("a"), _not_queued) as lease:
                lease.on_queued = told.append
                admission.hold(AgentName("alice"), "paused", running=True)
                await lease.paused(None, confirmed=True, clock=SystemClock())

        told: list[str] = []
        runs = asyncio.create_task(paused())
        await _turns()
        assert told == ["paused"]
        assert admission.cancel(TurnId("a"), Ended("enough"))
        with pytest.raises(Ended):
            await runs


async def test_a_client_that_leaves_in_the_same_moment_is_gone() -> None:
    async with _admission() as admission:
        runs = asyncio.create_task(_hold(admission, "a"))
        await _turns()
        admission.cancel(TurnId("a"), Ended("enough"))
        runs.cancel()
        with pytest.raises(asyncio.CancelledError):
            await runs


async def test_a_turn_that_ends_in_the_same_moment_has_ended() -> None:
    """What is asked too late to reach the block is not raised behind it."""
    async with _admission() as admission:
        async with admission.lease(_turn("a"), _not_queued):
            with contextlib.suppress(asyncio.CancelledError):
                admission.cancel(TurnId("a"), Ended("enough"))
                await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_held_turns_are_told_who_holds_them() -> None:
    async with _admission() as admission:
        admission.hold(AgentName("alice"), "paused by the owner")
        told: list[str] = []
        with pytest.raises(TooManyTurns, match=r"The owner has paused this agent: waited 0 s: .* Try again in 60 s"):
            async with admission.lease(_turn("a", hold_s=0.02), told.append):
                raise AssertionError("it ran")
        assert told == ["paused by the owner"]
        admission.release(AgentName("alice"))
        async with admission.lease(_turn("a"), _not_queued):
            pass


async def test_asking_for_a_pause_says_why_not_and_is_one_ask_for_all() -> None:
    async with _admission() as admission:
        assert await admission.slice(TurnId("nobody"), "x") == "it does not run"
        async with admission.lease(_turn("a"), _not_queued) as lease:
            assert await admission.slice(TurnId("a"), "x") == "its engine cannot go on with an answer"
            admission.set_engine(EngineMode.READY, pauses=True)
            answers = await asyncio.gather(*(admission.slice(TurnId("a"), "the owner asks") for _ in range(3)))
            assert answers == [None, None, None]
            assert lease.asked_to_pause.is_set()
            assert lease.pause_reason == "the owner asks"
            assert await admission.slice(TurnId("a"), "x") == "it has been asked to already"


def _claim(name: str, tokens: int) -> Claim:
    return Claim(turn_id=TurnId(name), agent=AgentName("alice"), segments=(Segment(name.encode(), tokens),))


async def test_a_turn_grows_where_it_is_if_there_is_room() -> None:
    async with _admission() as admission:
        admission.set_engine(EngineMode.READY, capacity=Capacity(tokens=100), pauses=True)
        turn = msgspec.structs.replace(_turn("a"), claim=_claim("a", 40))
        other = msgspec.structs.replace(_turn("b"), claim=_claim("b", 30))
        assert not await admission.grow(_claim("a", 50)), "it does not run"
        async with admission.lease(turn, _not_queued) as lease, admission.lease(other, _not_queued):
            assert await admission.grow(_claim("a", 70))
            assert not await admission.grow(_claim("a", 71))
            admission.check_integrity()
            gone = asyncio.create_task(admission.grow(_claim("a", 60)))
            await asyncio.sleep(0)
            gone.cancel()
            await _turns()
            assert await admission.slice(TurnId("a"), "the owner asks") is None
            assert lease.asked_to_pause.is_set()
            assert not await admission.grow(_claim("a", 10)), "it is to make room, not to go on"
        await _quiet(admission)

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

from governor.clock import ManualClock, SystemClock
from governor.errors import InternalError, TooManyTurns, UpstreamUnavailable
from governor.policy.model import LimitPolicy, SharePolicy
from governor.schedule.events import EngineMode, SchedulerEvent, TurnArrived, TurnPaused, TurnStarted
from governor.schedule.loop import Admission, Lease
from governor.types import AgentClass, AgentName, TurnId, TurnKind


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
async def _admission(slots: int | None = None, mode: EngineMode = EngineMode.READY) -> AsyncIterator[Admission]:
    admission = Admission(SystemClock())
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

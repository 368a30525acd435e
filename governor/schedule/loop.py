"""The one task that owns the scheduler's state. Everybody else posts it events and waits for a lease.

A grant is booked before it is delivered. If the waiter has gone meanwhile, its own exit posts the end and the booking
is taken back; a lease closes exactly once, on every exit, a client hanging up included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from governor.clock import Clock
from governor.errors import GovernorError, TooManyTurns, UpstreamUnavailable
from governor.schedule.effects import Refusal
from governor.schedule.turns import (
    EngineChanged,
    EngineMode,
    SchedulerEvent,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnScheduler,
)
from governor.types import TurnId

log = logging.getLogger(__name__)

QueuedCallback = Callable[[str], None]


class Lease(msgspec.Struct, frozen=True):
    """Leave to run one turn, and how long it waited for it, in seconds."""

    turn_id: TurnId
    waited_s: float


class _Waiter(msgspec.Struct):
    granted: asyncio.Future[None]
    on_queued: QueuedCallback


class Admission:
    """Hosts a :class:`TurnScheduler`; is its ``Effects``. Lives on one event loop; :meth:`run` must be running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scheduler = TurnScheduler(self)
        self._events: asyncio.Queue[SchedulerEvent] = asyncio.Queue()
        self._waiters: dict[TurnId, _Waiter] = {}

    @property
    def running(self) -> int:
        """Turns that hold a lease; for display."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Turns that wait; for display."""
        return self._scheduler.waiting

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def set_engine(self, mode: EngineMode, slots: int | None = None, detail: str = "") -> None:
        """Tell the engine's state. Until it is first told, turns wait."""
        self._events.put_nowait(EngineChanged(mode, slots, detail))

    @asynccontextmanager
    async def lease(self, turn: TurnArrived, on_queued: QueuedCallback) -> AsyncIterator[Lease]:
        """Wait for leave to run; give it back on exit. Raises :class:`TooManyTurns` when the turn is refused.

        ``on_queued`` is called from the owner task, with the reason, if the turn has to wait.
        """
        arrived = self._clock.monotonic()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), on_queued)
        self._waiters[turn.turn_id] = waiter
        self._events.put_nowait(turn)
        try:
            await waiter.granted
            yield Lease(turn.turn_id, self._clock.monotonic() - arrived)
        finally:
            del self._waiters[turn.turn_id]
            if waiter.granted.done() and not waiter.granted.cancelled():
                waiter.granted.exception()  # taken note of, should the waiter be cancelled in the same moment
            self._events.put_nowait(TurnEnded(turn.turn_id))

    async def run(self) -> None:
        """Own the scheduler until cancelled."""
        while True:
            event = await self._next_event()
            try:
                self._scheduler.on_event(self._clock.monotonic(), event)
            except Exception:
                log.exception("the turn scheduler failed on %r", event)

    async def _next_event(self) -> SchedulerEvent:
        if not self._events.empty():
            return self._events.get_nowait()
        now = self._clock.monotonic()
        deadline = self._scheduler.next_deadline(now)
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - now)):
                return await self._events.get()
        except TimeoutError:
            return TimePassed()

    def grant(self, turn_id: TurnId) -> None:
        waiter = self._waiters.get(turn_id)
        if waiter is not None and not waiter.granted.done():
            waiter.granted.set_result(None)

    def queue(self, turn_id: TurnId, reason: str) -> None:
        waiter = self._waiters.get(turn_id)
        if waiter is not None:
            waiter.on_queued(reason)

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        waiter = self._waiters.get(turn_id)
        if waiter is None or waiter.granted.done():
            return
        error: GovernorError
        if refusal is Refusal.ENGINE_DOWN:
            error = UpstreamUnavailable(f"No answer can be had now: {reason}.", retry_after_s=retry_after_s)
        else:
            message = f"Too many requests at once: {reason}. Try again in {retry_after_s} s."
            error = TooManyTurns(message, retry_after_s=retry_after_s)
        waiter.granted.set_exception(error)

"""The one task that owns the scheduler's state. Everybody else posts it events and waits for a lease.

A grant is booked before it is delivered. If the waiter has gone meanwhile, its own exit posts the end and the booking
is taken back; a lease closes exactly once, on every exit, a client hanging up included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager

import msgspec

from governor.budget.claim import Capacity, Claim, Sight
from governor.budget.ledger import Freed
from governor.clock import Clock
from governor.errors import ContextOverflow, GovernorError, InternalError, TooManyTurns, UpstreamUnavailable
from governor.events import TurnDecided
from governor.schedule.breakable import Breakable
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    AgentHeld,
    AgentReleased,
    ClaimGrown,
    EngineChanged,
    EngineMode,
    EngineSeen,
    FloorsChanged,
    Left,
    SchedulerEvent,
    SliceAsked,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnStarted,
    TurnWrote,
)
from governor.schedule.line import queue_view
from governor.schedule.retention import Rest, Retention
from governor.schedule.turns import TurnScheduler
from governor.snapshot import QueueView
from governor.types import AgentName, TurnId, Verdict

log = logging.getLogger(__name__)

QueuedCallback = Callable[[str], None]
DecisionCallback = Callable[[TurnDecided], None]


def _nobody(decided: TurnDecided) -> None:
    pass


def _for_nobody(turn: TurnArrived) -> str:
    return "in idle time" if turn.context is None else "fetches a context back into L1"


class Lease:
    """Leave to run one turn. Given by :meth:`Admission.lease`; belongs to the turn's task."""

    def __init__(self, turn: TurnArrived, on_queued: QueuedCallback, post: Callable[[SchedulerEvent], None]) -> None:
        self.turn = turn
        self.on_queued = on_queued
        self.waited_s = 0.0
        """For the last grant."""
        self.why = ""
        """Of the last grant, for people."""
        self.asked_to_pause = asyncio.Event()
        """Set while the scheduler wants the turn to make room; :attr:`pause_reason` says for whom."""
        self.pause_reason = ""
        self.was_paused = False
        """At least once."""
        self.confirmed = True
        """At the end: the engine itself has ended the turn. Set to false before an exit that leaves that open."""
        self.left: Left | None = None
        """At the end: what the turn leaves in the cache."""
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.block = Breakable()
        """What runs under the lease."""
        self._post = post
        self.is_taken = False
        """The scheduler has been told that the turn waits for leave."""
        self._started = False

    def on_started(self) -> None:
        """The first token since the last grant has come. May be repeated."""
        if not self._started:
            self._started = True
            self._post(TurnStarted(self.turn.turn_id))

    def on_wrote(self, tokens: int) -> None:
        """So much has been written since the last grant."""
        self._post(TurnWrote(self.turn.turn_id, tokens))

    async def paused(self, claim: Claim | None, *, confirmed: bool, clock: Clock) -> None:
        """The turn has stopped as asked; wait for leave to go on. ``claim``: its need now, its output so far in it."""
        began = clock.monotonic()
        self.granted = asyncio.get_running_loop().create_future()
        self.was_paused, self._started, self.is_taken = True, False, False
        self.asked_to_pause.clear()
        self._post(TurnPaused(turn_id=self.turn.turn_id, claim=claim, confirmed=confirmed))
        await self.granted
        self.waited_s = clock.monotonic() - began


class Admission:
    """Hosts a :class:`TurnScheduler`; is its ``Effects``. Lives on one event loop; :meth:`run` must be running.

    ``on_decision`` is called from the owner task with each decision, once, when it has been done. It must not raise.
    """

    def __init__(self, clock: Clock, on_decision: DecisionCallback = _nobody) -> None:
        self._clock = clock
        self._on_decision = on_decision
        self._scheduler = TurnScheduler(self)
        self._retention = Retention()
        self._events: asyncio.Queue[SchedulerEvent] = asyncio.Queue()
        self._leases: dict[TurnId, Lease] = {}
        self._slices: dict[TurnId, asyncio.Future[str | None]] = {}
        """Asked of the owner task; what keeps a turn from it, in words."""
        self._grown: dict[TurnId, asyncio.Future[bool]] = {}
        """Asked of the owner task, each by the turn itself."""

    @property
    def running(self) -> int:
        """Turns that hold a lease; for display."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Turns that wait; for display."""
        return self._scheduler.waiting

    @property
    def holds_leases(self) -> bool:
        """Something is booked, be it only until the engine confirms that it has gone."""
        return bool(self._scheduler.ledger.held_tokens) or self._scheduler.running > 0

    def tell_held(self, turn_id: TurnId, agent: AgentName, why: str) -> None:
        """A turn waits before it can ask for a lease. That is a decision like another."""
        self._on_decision(self._decided(Verdict.QUEUED, turn_id, agent, why))

    def view(self) -> QueueView:
        """Who runs, who waits for what, and what is booked, now; for display."""
        return queue_view(self._scheduler, self._clock.monotonic(), self._clock.wall())

    def place_in_line(self, turn_id: TurnId) -> str | None:
        """For the client of a turn that waits: its place and what it waits for now, naming nobody else. ``None`` if it
        does not wait."""
        standing = self._scheduler.standing(self._clock.monotonic(), turn_id)
        if standing is None:
            return None
        return f"waiting {standing.position} of {self._scheduler.waiting}: {standing.told_reason}"

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()
        self._retention.check_integrity()

    def set_engine(
        self,
        mode: EngineMode,
        slots: int | None = None,
        detail: str = "",
        capacity: Capacity = Capacity(),  # noqa: B008 - a frozen value
        *,
        pauses: bool = False,
        anew: bool = False,
    ) -> None:
        """Tell the engine's state. Until it is first told, turns wait."""
        self._events.put_nowait(EngineChanged(mode, slots, detail, capacity, pauses, anew))

    def on_sight(self, sight: Sight, served_share: float | None = None) -> None:
        """The engine has told its load."""
        self._events.put_nowait(EngineSeen(sight=sight, served_share=served_share))

    def set_floors(self, floors: Mapping[AgentName, int]) -> None:
        """KV tokens that are left free for these agents."""
        self._events.put_nowait(FloorsChanged(floors))

    def hold(self, agent: AgentName, reason: str, *, running: bool = False) -> None:
        """The agent's turns wait until it is released; ``running``: those that have begun as well. May be repeated."""
        self._events.put_nowait(AgentHeld(agent=agent, reason=reason, running=running))

    def release(self, agent: AgentName) -> None:
        """May be repeated."""
        self._events.put_nowait(AgentReleased(agent))

    async def slice(self, turn_id: TurnId, reason: str) -> str | None:
        """Ask a running turn to pause, so that those that wait go first. Returns why that cannot be, in words;
        ``None``: it was asked."""
        answer = self._slices.get(turn_id)
        if answer is None:
            answer = self._slices[turn_id] = asyncio.get_running_loop().create_future()
            self._events.put_nowait(SliceAsked(turn_id, reason))
        return await asyncio.shield(answer)

    async def grow(self, claim: Claim) -> bool:
        """Have a running turn's need of L1 booked as it is now, if there is room at once. Else it is to pause, and to
        wait for room as any other does. To be asked by the turn itself."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._grown[claim.turn_id] = answer
        self._events.put_nowait(ClaimGrown(claim))
        return await answer

    def cancel(self, turn_id: TurnId, error: GovernorError) -> bool:
        """End a turn that waits or runs: whoever holds its lease gets ``error``. False: it ends so already, or neither
        holds a lease nor waits for one."""
        lease = self._leases.get(turn_id)
        if lease is None or not lease.block.break_off(error):
            return False
        self._tell(Verdict.REFUSED, lease.turn, error.message)
        return True

    def to_fetch(self, having: Container[str]) -> Rest | None:
        """Whose context, of those in ``having``, is to be brought back into L1 now, while nobody waits but who
        is held. Whoever does it asks for a lease as a turn does, and is asked to stop when another turn arrives."""
        if self._scheduler.wants_engine() or not self._events.empty():
            return None
        held_tokens = self._scheduler.ledger.held_tokens
        return self._retention.to_fetch(self._clock.monotonic(), held_tokens=held_tokens, having=having)

    @asynccontextmanager
    async def lease(self, turn: TurnArrived, on_queued: QueuedCallback) -> AsyncIterator[Lease]:
        """Wait for leave to run; give it back on exit. Raises :class:`TooManyTurns` when the turn is refused, and the
        error of :meth:`cancel`.

        ``on_queued`` is called from the owner task, with the reason, each time that the turn has to wait.
        """
        arrived = self._clock.monotonic()
        lease = Lease(turn, on_queued, self._events.put_nowait)
        if not turn.fetches:
            self._stop_fetches(turn)
        self._leases[turn.turn_id] = lease
        self._events.put_nowait(turn)
        try:
            with lease.block:
                await lease.granted
                lease.waited_s = self._clock.monotonic() - arrived
                yield lease
        finally:
            del self._leases[turn.turn_id]
            if lease.granted.done() and not lease.granted.cancelled():
                lease.granted.exception()  # taken note of, should the waiter be cancelled in the same moment
            self._events.put_nowait(TurnEnded(turn.turn_id, lease.confirmed, lease.left))

    async def run(self) -> None:
        """Own the scheduler until cancelled."""
        while True:
            event = await self._next_event()
            now = self._clock.monotonic()
            if isinstance(event, ClaimGrown):
                self._on_grown(event.claim)
                continue
            if isinstance(event, TurnArrived | TurnPaused):
                self._mark_taken(event.turn_id)
            if isinstance(event, SliceAsked):
                self._slices.pop(event.turn_id).set_result(self._scheduler.cannot_pause(event.turn_id))
            try:
                self._scheduler.on_event(now, self._noted(now, event))
            except Exception:
                log.exception("the turn scheduler failed on %r", event)
                self._fail_lost()

    def _on_grown(self, claim: Claim) -> None:
        asked, fits = self._grown.pop(claim.turn_id), self._scheduler.grow(claim)
        if not asked.done():  # whoever asked may have gone
            asked.set_result(fits)

    def _noted(self, now: float, event: SchedulerEvent) -> SchedulerEvent:
        """An event, with what is known of caches. That is of use, and no more: nothing is lost for want of it."""
        try:
            return self._retention.on_event(now, event)
        except Exception:
            log.exception("what is in the cache could not be kept up on %r", event)
            return event

    def _mark_taken(self, turn_id: TurnId) -> None:
        lease = self._leases.get(turn_id)
        if lease is not None:
            lease.is_taken = True

    def _fail_lost(self) -> None:
        """A turn that the scheduler has dropped in a failure of its own would wait for ever."""
        for turn_id, lease in self._leases.items():
            if lease.is_taken and not lease.granted.done() and not self._scheduler.waits(turn_id):
                lease.granted.set_exception(InternalError("The governor failed on this request; its log says how."))

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

    def grant(self, turn_id: TurnId, why: str) -> None:
        self._retention.on_granted(turn_id)
        lease = self._leases.get(turn_id)
        if lease is not None and not lease.granted.done():
            lease.why = why
            if not lease.turn.fetches:
                lease.asked_to_pause.clear()  # asked of what it was before its pause
            lease.granted.set_result(None)
            told = f"{_for_nobody(lease.turn)}: {why}" if lease.turn.fetches else why
            self._tell(Verdict.RESUMED if lease.was_paused else Verdict.GRANTED, lease.turn, told)

    def queue(self, turn_id: TurnId, reason: str) -> None:
        lease = self._leases.get(turn_id)
        if lease is not None:
            lease.on_queued(reason)
            self._tell(Verdict.PAUSED if lease.was_paused else Verdict.QUEUED, lease.turn, reason)

    def pause(self, turn_id: TurnId, reason: str) -> None:
        lease = self._leases.get(turn_id)
        if lease is not None:
            lease.pause_reason = reason
            lease.asked_to_pause.set()
            self._tell(Verdict.PAUSE_ASKED, lease.turn, reason)

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        lease = self._leases.get(turn_id)
        if lease is None or lease.granted.done():
            return
        lease.granted.set_exception(self._error(lease.turn, refusal, reason, retry_after_s))
        self._tell(Verdict.REFUSED, lease.turn, reason)

    def take_back(self, freed: Freed) -> None:
        self._on_decision(self._decided(Verdict.FREED, freed.turn_id, freed.agent, freed.why))

    def _stop_fetches(self, turn: TurnArrived) -> None:
        for lease in self._leases.values():
            if lease.turn.fetches and not lease.asked_to_pause.is_set():
                lease.pause_reason = f"{turn.agent} wants the engine"
                lease.asked_to_pause.set()
                self._tell(Verdict.PAUSE_ASKED, lease.turn, lease.pause_reason)

    def _tell(self, verdict: Verdict, turn: TurnArrived, why: str) -> None:
        scheduler, turn_id = self._scheduler, turn.turn_id
        standing = scheduler.standing(self._clock.monotonic(), turn_id)
        claim = scheduler.ledger.claim_of(turn_id) if standing is None else standing.waiting.turn.claim
        decided = self._decided(verdict, turn_id, turn.agent, why, claim or turn.claim)
        position = None if standing is None else standing.position
        self._on_decision(msgspec.structs.replace(decided, position=position))

    def _decided(
        self, verdict: Verdict, turn_id: TurnId, agent: AgentName, why: str, claim: Claim | None = None
    ) -> TurnDecided:
        scheduler = self._scheduler
        return TurnDecided(
            at=self._clock.wall(),
            turn_id=turn_id,
            agent=agent,
            verdict=verdict,
            why=why,
            waiting=scheduler.waiting,
            running=scheduler.running,
            needs_tokens=None if claim is None else claim.tokens,
            booked_tokens=scheduler.ledger.held_tokens,
            free_tokens=scheduler.ledger.free_tokens,
        )

    def _error(self, turn: TurnArrived, refusal: Refusal, reason: str, retry_after_s: int) -> GovernorError:
        total = self._scheduler.ledger.capacity.tokens
        match refusal:
            case Refusal.ENGINE_DOWN:
                return UpstreamUnavailable(f"No answer can be had now: {reason}.", retry_after_s=retry_after_s)
            case Refusal.TOO_LARGE if turn.claim is not None and total is not None:
                return ContextOverflow(
                    prompt_tokens=turn.claim.prompt_tokens,
                    window_tokens=total,
                    reserve_tokens=turn.claim.output_tokens * turn.claim.choices,
                    detail=f"({reason}.)",
                )
            case Refusal.HELD:
                message = f"The owner has paused this agent: {reason}. Try again in {retry_after_s} s."
                return TooManyTurns(message, retry_after_s=retry_after_s)
            case _:
                message = f"Too many requests at once: {reason}. Try again in {retry_after_s} s."
                return TooManyTurns(message, retry_after_s=retry_after_s)

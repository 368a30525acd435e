"""The turns that run now, and what room they leave: KV memory, state slots, places in the engine. Pure."""

from __future__ import annotations

import math
from collections import Counter

from governor.budget.ledger import GRACE_S, Ledger
from governor.schedule.events import EngineChanged, EngineMode, TurnArrived
from governor.schedule.returns import Returns
from governor.schedule.room import Room
from governor.schedule.service import Service
from governor.schedule.slices import Candidate
from governor.schedule.standing import Running
from governor.types import TurnId

_ROUNDING = 1e-9
LONGEST_TURN_S = 6 * 3600.0


class Floor:
    """Running turns, each with its lease; and the engine they run on."""

    def __init__(self) -> None:
        self.engine = EngineChanged(EngineMode.COMING)
        self.room = Room()
        self.service = Service()
        self.running: dict[TurnId, Running] = {}
        self._returns = Returns()
        self._sessions: Counter[str] = Counter()
        """Conversations with a running turn."""

    @property
    def ledger(self) -> Ledger:
        return self.room.ledger

    def is_full(self) -> bool:
        """All the engine's places are taken."""
        return self.engine.slots is not None and len(self.running) >= self.engine.slots

    def making_room(self, now: float) -> tuple[TurnId, ...]:
        """Turns that have been asked to stop and have not yet."""
        return tuple(turn_id for turn_id, each in self.running.items() if each.is_making_room(now))

    def set_engine(self, event: EngineChanged) -> None:
        self.engine = event
        self.ledger.capacity = event.capacity
        if event.anew:
            self.ledger.clear()
            for each in self.running.values():  # they are failing; until each says so its place is kept where it can be
                claim = each.turn.claim
                each.is_lost = claim is not None and bool(self.ledger.shortage(claim))
                if claim is not None and not each.is_lost:
                    self.ledger.book(claim, each.granted_at, LONGEST_TURN_S)

    def start(self, turn: TurnArrived, now: float, *, resumed: bool = False, stops: int = 0) -> None:
        """The turn runs from now on; its room is booked. ``resumed``: again, after a pause. ``stops``: it was stopped
        so often before its first token."""
        held = turn.tokens / turn.share.weight
        if turn.claim is not None:
            self.ledger.release(turn.turn_id, now, confirmed=True)  # before its pause; perhaps still in the engine
            self.ledger.book(self.ledger.at_most(turn.claim), now, LONGEST_TURN_S)
        self.service.hold(turn.agent, now, held)
        self.running[turn.turn_id] = Running(turn, now, now, resumed, stops)
        self._sessions[turn.session or ""] += 1

    def stop(self, turn_id: TurnId, now: float, *, confirmed: bool) -> Running | None:
        """It runs no more; ``None`` if it did not."""
        running = self.running.pop(turn_id, None)
        if running is None:
            return None
        if not running.started:
            self._next_prefill(now)
        turn = running.turn
        self.ledger.release(turn_id, now, confirmed=confirmed)
        self.service.hold(turn.agent, now, -turn.tokens / turn.share.weight)
        self._sessions -= Counter((turn.session or "",))
        return running

    def on_started(self, turn_id: TurnId, now: float) -> None:
        """Its first token is there."""
        running = self.running.get(turn_id)
        if running is not None and not running.started:
            if running.resumed and not running.stops:
                self._returns.on_returned(now - running.granted_at, running.turn.tokens)
            running.started, running.since = True, now
            self._next_prefill(now)

    def _quantum_s(self, running: Running) -> float:
        return self._returns.quantum_s(running.turn.slices.quantum_s, running.turn.tokens)

    def _next_prefill(self, now: float) -> None:
        """Whichever comes next, the engine has not worked on it before."""
        for each in self.running.values():
            if not each.started:
                each.since = now

    def runs_session(self, session: str) -> bool:
        return session in self._sessions

    def lacks(self, turn: TurnArrived) -> bool:
        """Whether there is no place or no room for it now."""
        return self.is_full() or self.room.lacks(turn)

    def would_fit(self, turn: TurnArrived, without: tuple[TurnId, ...]) -> bool:
        """Whether there would be place and room if those turns were gone."""
        slots, left = self.engine.slots, len(self.running) - len(without)
        return (slots is None or left < slots) and (left == 0 or self.room.fits_without(turn, without))

    def cannot_pause(self, turn_id: TurnId) -> str | None:
        """Why it cannot be asked to stop now, in words; ``None`` if it can."""
        running = self.running.get(turn_id)
        if running is None:
            return "it does not run"
        if not self.engine.pauses:
            return "its engine cannot go on with an answer"
        if not running.turn.slices.enabled:
            return "it has to be one generation, by what it asks for or by slices.enabled of its policy"
        return None if running.asked_at is None else "it has been asked to already"

    def candidates(self, now: float) -> list[Candidate]:
        """Running turns that could be asked to stop, as far as they are not yet."""
        return [
            Candidate(
                turn=each.turn,
                granted_at=each.granted_at,
                quanta=(now - each.since) / self._quantum_s(each),
                stops=each.stops,
                attained=self.service.attained(each.turn.agent, now),
                started=each.started,
            )
            for each in self.running.values()
            if each.asked_at is None
        ]

    def stuck(self, now: float) -> list[Running]:
        """Granted turns that have waited for their first token for longer than they would before the engine."""
        return [
            each
            for each in self.running.values()
            if not each.started
            and each.asked_at is None
            and not each.turn.fetches  # nobody waits for that one
            and now - each.granted_at >= each.turn.slices.yield_after_s
        ]

    def next_moment(self, now: float, *, somebody_waits: bool) -> float | None:
        """When a quantum, or the patience of one inside the engine, is over."""
        running = self.running.values()
        moments = [each.granted_at + each.turn.slices.yield_after_s for each in running if not each.started]
        if moments or somebody_waits:
            moments += [each.asked_at + GRACE_S for each in running if each.asked_at is not None]
            moments += [_next_quantum(each.since, self._quantum_s(each), now) for each in running]
        return min((moment for moment in moments if moment > now), default=None)

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        for turn_id, each in self.running.items():
            if each.turn.claim is not None and not each.is_lost and not self.ledger.holds(turn_id):
                raise AssertionError(f"{turn_id} runs without a lease")
        if +self._sessions != Counter(each.turn.session or "" for each in self.running.values()):
            raise AssertionError("running conversations are booked wrong")
        self.ledger.check_integrity()


def _next_quantum(since: float, quantum_s: float, now: float) -> float:
    """When it will next have run for a whole number of quanta."""
    return since + quantum_s * (math.floor((now - since) / quantum_s + _ROUNDING) + 1)

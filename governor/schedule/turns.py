"""Who may run now: the pure turn scheduler. No I/O, no clock, no lock; every event brings its time.

A turn runs when the engine is ready and has a slot, when its whole claim fits the KV ledger, when its agent's own
limits allow it, and when nobody who goes before it (:mod:`governor.schedule.order`) could run instead. A turn that does
not fit lets smaller ones pass, until its waiting budget is over: from then on nobody passes it. Running answers are
paused for those that have waited (:mod:`governor.schedule.slices`). Compactions pass the agent's own limits, since a
client whose compaction is refused loses its history (Hermes does); an answer that was begun passes them, too, and is
never refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import msgspec

from governor.budget.claim import Claim
from governor.budget.ledger import Freed, Ledger
from governor.schedule.books import AgentBook, check_books
from governor.schedule.effects import Effects, Refusal
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
from governor.schedule.floor import Floor
from governor.schedule.hindrance import Hindrances
from governor.schedule.holds import Holds
from governor.schedule.pace import Pace
from governor.schedule.queue import TurnQueue
from governor.schedule.slices import Waiter, for_room, for_turn_in_engine
from governor.schedule.standing import Running, Standing, Waiting
from governor.schedule.window import ActiveWindow
from governor.types import NEVER_REFUSED, AgentName, TurnId

ENGINE_RETRY_S = 10
HELD_RETRY_S = 60


class TurnScheduler:
    """Decides on events. All times are seconds of one monotonic clock."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._floor = Floor()
        self._window = ActiveWindow()
        self._waiting = TurnQueue()
        self._agents: dict[AgentName, AgentBook] = {}
        self._holds = Holds()
        self._hindrances = Hindrances(self._floor, self._window, self._waiting, self._agents, self._holds)
        self._arrivals = 0
        self._changed = True
        """Something has happened since the last look that may let somebody in."""
        self._pace = Pace()
        self._opens_at: float | None = None
        """When time alone will."""

    @property
    def ledger(self) -> Ledger:
        """Who holds how much of L1; for display."""
        return self._floor.ledger

    @property
    def running(self) -> int:
        return len(self._floor.running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waits(self, turn_id: TurnId) -> bool:
        return turn_id in self._waiting

    def standings(self, now: float) -> list[Standing]:
        """The waiting turns in the order in which they are looked at, and why each waits; for display."""
        attained = partial(self._floor.service.attained, now=now)
        in_line = self._waiting.in_order(now, attained, lambda _: True, look_ahead=None)
        return [self._hindrances.standing(now, waiting, position) for position, waiting in enumerate(in_line, start=1)]

    def standing(self, now: float, turn_id: TurnId) -> Standing | None:
        """Of one waiting turn, ``None`` if it does not wait; for display."""
        waiting = self._waiting.get(turn_id)
        if waiting is None:
            return None
        attained = partial(self._floor.service.attained, now=now)
        return self._hindrances.standing(now, waiting, self._waiting.position(turn_id, attained))

    def wants_engine(self) -> bool:
        """Somebody waits who is not held."""
        return any(self._holds.reason(waiting) is None for waiting in self._waiting.all())

    def cannot_pause(self, turn_id: TurnId) -> str | None:
        """Why a turn cannot be asked to pause now, in words; ``None`` if it can."""
        return self._floor.cannot_pause(turn_id)

    def grow(self, claim: Claim) -> bool:
        """Book what a running turn needs now, if there is room; a turn that makes room for others gets none."""
        running = self._floor.running.get(claim.turn_id)
        return running is not None and running.asked_at is None and self.ledger.change(claim)

    def on_event(self, now: float, event: SchedulerEvent) -> None:
        """Take an event; act through the effects. An event about an unknown turn changes nothing."""
        match event:
            case TurnWrote(turn_id, tokens):
                self._on_wrote(now, turn_id, tokens)
                return  # like the next one it makes nobody else able to run
            case TurnStarted(turn_id):
                self._floor.on_started(turn_id, now)
                return
            case TurnArrived():
                due = self.next_deadline(now)
                if due is not None and due <= now:
                    self._settle(now)  # whom time alone has let in or sent away since the last event comes first
                self._on_arrival(now, event)
                return
            case TurnPaused():
                self._on_paused(now, event)
            case TurnEnded(turn_id, confirmed):
                self._stop(now, turn_id, confirmed=confirmed)
                self._forget_waiting(now, turn_id)
            case EngineChanged():
                self._floor.set_engine(event)
            case EngineSeen():
                self._tell_freed(self.ledger.reconcile(now, event.sight))
                self._window.on_seen(now, self._floor.room.occupancy, event.served_share)
            case FloorsChanged(floors):
                self._floor.room.floors = floors
            case AgentHeld() | AgentReleased() | SliceAsked():
                self._on_owner(now, event)
            case TimePassed():
                self._changed |= self._tell_freed(self.ledger.expire(now))
                self._settle(now)
                return
        self._changed = True
        self._settle(now)

    def next_deadline(self, now: float) -> float | None:
        """When time alone will change something."""
        moments = [self._waiting.next_moment(), self.ledger.next_expiry()]
        if self._waiting:
            moments.append(self._opens_at)
        if self._floor.engine.pauses:
            moments.append(self._floor.next_moment(now, somebody_waits=bool(self._waiting)))
            moments.append(self._pace.next_moment(now))
        return min((moment for moment in moments if moment is not None), default=None)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the books disagree with the turns they are about."""
        running, waiting = self._floor.running, self._waiting.all()
        runs = Counter(each.turn.agent for each in running.values())
        check_books(self._agents, runs, Counter(each.turn.agent for each in waiting))
        if any(turn_id in self._waiting for turn_id in running):
            raise AssertionError("a turn both runs and waits")
        self._floor.check_integrity()

    # Events

    def _on_arrival(self, now: float, turn: TurnArrived) -> None:
        if turn.turn_id in self._floor.running or turn.turn_id in self._waiting:
            raise ValueError(f"turn {turn.turn_id} arrived twice")
        if self._floor.engine.mode is EngineMode.DOWN:
            self._refuse_engine_down(turn)
            return
        too_large = self._floor.room.too_large(turn)
        if too_large is not None:
            self._effects.reject(turn.turn_id, Refusal.TOO_LARGE, too_large, 0)
            return
        agent = self._agents.setdefault(turn.agent, AgentBook())
        self._arrivals += 1
        waiting = self._waiting.newcomer(turn, now, self._arrivals)
        own = self._hindrances.words(now, waiting)
        reason = own or self._hindrances.held_back(now, waiting)
        if reason is None:
            self._grant(now, waiting)
        elif agent.queued >= turn.limits.queue and turn.kind not in NEVER_REFUSED:
            self._forget_if_idle(turn.agent)
            told = own or self._hindrances.held_back(now, waiting, named=False)
            full = f"{agent.queued} turns of this agent wait already ({told})"
            self._effects.reject(turn.turn_id, Refusal.BUSY, full, agent.retry_after(now, turn))
        else:
            self._enqueue(now, waiting, reason)
            self._opens_at = self._next_opening(now)

    def _on_paused(self, now: float, event: TurnPaused) -> None:
        stopped = self._stop(now, event.turn_id, confirmed=event.confirmed)
        if stopped is None:
            return
        self._arrivals += 1
        claim = None if event.claim is None else self.ledger.at_most(event.claim)
        left = 0 if stopped.started else stopped.turn.prefill_tokens  # at most: its chunks are cached
        turn = msgspec.structs.replace(stopped.turn, claim=claim, new_tokens=left)
        self._agents.setdefault(turn.agent, AgentBook())
        stops = 0 if stopped.started else stopped.stops + 1
        waiting = Waiting(turn, now, self._arrivals, resumed=True, stops=stops, yields=stopped.yields)
        self._enqueue(now, waiting, self._holds.reason(waiting) or "paused, so that others can run")

    def _on_owner(self, now: float, event: AgentHeld | AgentReleased | SliceAsked) -> None:
        match event:
            case AgentHeld():
                self._holds.hold(event)
                mine = [id_ for id_, each in self._floor.running.items() if each.turn.agent == event.agent]
                for turn_id in mine if event.running else ():
                    if self.cannot_pause(turn_id) is None:
                        self._pause(now, turn_id, event.reason)
            case AgentReleased(agent):
                if self._holds.release(agent):
                    self._arrivals = self._waiting.begin_anew(agent, now, self._arrivals)
            case SliceAsked(turn_id, reason):
                if self.cannot_pause(turn_id) is None:
                    self._floor.running[turn_id].yields = True
                    self._pause(now, turn_id, reason)

    def _on_wrote(self, now: float, turn_id: TurnId, tokens: int) -> None:
        """Reserve ahead of what is written; where there is no room for more, somebody makes it."""
        running, claim = self._floor.running.get(turn_id), self.ledger.claim_of(turn_id)
        if running is None or claim is None or not self._floor.engine.pauses:
            return
        step = running.turn.slices.lookahead
        grown = self.ledger.larger(claim, step)
        if tokens <= claim.output_tokens - step // 4 or grown.output_tokens <= claim.output_tokens:
            return
        if self.ledger.grow(turn_id, grown.output_tokens) or running.asked_at is not None:
            return
        going = (turn_id, *self._floor.making_room(now))
        if not self.ledger.shortage(grown, without=going):
            return  # somebody is making room already
        attained = self._floor.service.attained(running.turn.agent, now)
        waiter = Waiter(turn=running.turn, attained=attained, overdue=False)
        candidates = self._floor.candidates(now)
        victims = for_room(candidates, waiter, lambda out: not self.ledger.shortage(grown, without=(*going, *out)))
        for victim in victims or (turn_id,):
            self._pause(now, victim, f"L1 is full: {turn_id} has written {tokens:,} tokens and needs room for more")

    # Deciding

    def _settle(self, now: float) -> None:
        self._waiting.pass_time(now)
        self._expire(now)
        if self._floor.engine.mode is not EngineMode.READY:
            self._opens_at = None  # its return is a change
            return
        if self._changed or (self._opens_at is not None and now >= self._opens_at):
            self._changed = False
            while self._grant_all(now) and self._waiting.yielding:
                pass  # whom they let pass may have gone
            self._opens_at = self._next_opening(now)
        if self._floor.engine.pauses:
            self._pause_for_waiting(now)
            self._pause_for_stuck(now)

    def _expire(self, now: float) -> None:
        if self._floor.engine.mode is EngineMode.DOWN:
            for waiting in self._waiting.all():
                self._forget_waiting(now, waiting.turn.turn_id)
                self._refuse_engine_down(waiting.turn)
        for waiting in tuple(self._waiting.out_of_time.values()):
            turn, reason = waiting.turn, self._hindrances.words(now, waiting)
            held = self._holds.reason(waiting) is not None
            self._changed = True  # it can run now, or who waits behind it can
            if reason is None or (held and turn.kind in NEVER_REFUSED):
                continue
            refusal = Refusal.HELD if held else Refusal.BUSY
            retry_s = HELD_RETRY_S if held else self._agents[turn.agent].retry_after(now, turn)
            self._forget_waiting(now, turn.turn_id)
            self._effects.reject(turn.turn_id, refusal, f"waited {now - waiting.since:.0f} s: {reason}", retry_s)

    def _grant_all(self, now: float) -> bool:
        """Whether anybody was let in."""
        if not self._waiting or self._floor.is_full():
            return False
        passes, granted = False, False
        for waiting in self._ordered(now):
            if self._floor.is_full():
                break
            if not self._hindrances.may_run(now, waiting):
                continue
            if not self._floor.lacks(waiting.turn):
                self._agents[waiting.turn.agent].queued -= 1
                self._waiting.remove(waiting.turn.turn_id)
                self._grant(now, waiting)
                granted = True
                if not passes:
                    self._pace.on_first_granted(waiting.turn.turn_id, now)
            elif self._waiting.is_overdue(waiting):
                break  # what becomes free is for this one
            else:
                passes = True
        return granted

    def _ordered(self, now: float) -> Iterator[Waiting]:
        attained = partial(self._floor.service.attained, now=now)
        return self._waiting.in_order(now, attained, lambda waiting: self._hindrances.own_limit(now, waiting) is None)

    def _next_opening(self, now: float) -> float | None:
        moments = [self._agents[name].next_opening(now) for name in self._waiting.agents()]
        moments.append(self._window.next_change(now))
        return min((moment for moment in moments if moment is not None), default=None)

    def _grant(self, now: float, waiting: Waiting) -> None:
        turn, agent = waiting.turn, self._agents[waiting.turn.agent]
        self._floor.start(turn, now, resumed=waiting.resumed, stops=waiting.stops)
        agent.running += 1
        if not waiting.resumed:
            agent.note_grant(now)
        self._window.on_granted(turn.agent, now)
        free = self.ledger.free_tokens
        room = "" if free is None or turn.claim is None else f"; {turn.claim.tokens:,} KV tokens booked, {free:,} free"
        what = "goes on" if waiting.resumed else "runs"
        self._effects.grant(turn.turn_id, f"{what} after {now - waiting.since:.1f} s{room}")

    def _enqueue(self, now: float, waiting: Waiting, reason: str) -> None:
        self._agents[waiting.turn.agent].queued += 1
        self._waiting.add(waiting, now)
        self._effects.queue(waiting.turn.turn_id, reason)

    # Pausing

    def _pause_for_waiting(self, now: float) -> None:
        if not self._waiting or all(c.quanta < 1 for c in self._floor.candidates(now)):
            return
        going = self._floor.making_room(now)
        for waiting in self._ordered(now):
            turn = waiting.turn
            if (
                self._waiting.is_patient(waiting)
                or not self._floor.lacks(turn)
                or not self._hindrances.may_run(now, waiting)
            ):
                continue
            if not self._floor.would_fit(turn, going) and self._pace.stands_still(now, turn.slices.yield_after_s):
                self._make_room_for(now, waiting, going)
            return  # one at a time: what becomes free is for the first in order

    def _make_room_for(self, now: float, waiting: Waiting, going: tuple[TurnId, ...]) -> None:
        turn, overdue = waiting.turn, self._waiting.is_overdue(waiting)
        waiter = Waiter(turn=turn, attained=self._floor.service.attained(turn.agent, now), overdue=overdue)
        candidates = self._floor.candidates(now)
        reason = f"{turn.agent} has waited {now - waiting.since:.0f} s: {self._hindrances.words(now, waiting)}"
        for victim in for_room(candidates, waiter, lambda out: self._floor.would_fit(turn, (*going, *out))):
            self._pace.on_helped(turn.turn_id)
            self._pause(now, victim, reason)

    def _pause_for_stuck(self, now: float) -> None:
        """A granted turn without its first token, behind a long prefill of somebody granted earlier."""
        stuck = self._floor.stuck(now)
        candidates = self._floor.candidates(now) if stuck else []
        for each in stuck:
            owner, waited = each.turn.agent, now - each.granted_at
            waiter = Waiter(turn=each.turn, attained=self._floor.service.attained(owner, now), overdue=False)
            for victim in for_turn_in_engine([c for c in candidates if c.granted_at < each.granted_at], waiter):
                self._pause(now, victim, f"its prefill has kept {owner} waiting in the engine for {waited:.0f} s")
                return

    def _pause(self, now: float, turn_id: TurnId, reason: str) -> None:
        self._floor.running[turn_id].asked_at = now
        self._effects.pause(turn_id, reason)

    # Books

    def _tell_freed(self, freed: list[Freed]) -> bool:
        for each in freed:
            self._effects.take_back(each)
        return bool(freed)

    def _stop(self, now: float, turn_id: TurnId, *, confirmed: bool) -> Running | None:
        stopped = self._floor.stop(turn_id, now, confirmed=confirmed)
        if stopped is not None:
            agent = stopped.turn.agent
            self._window.on_ended(agent, now)
            self._agents[agent].running -= 1
            self._forget_if_idle(agent)
        return stopped

    def _forget_waiting(self, now: float, turn_id: TurnId) -> None:
        waiting = self._waiting.leave(turn_id, now)
        if waiting is not None:
            self._agents[waiting.turn.agent].queued -= 1
            self._forget_if_idle(waiting.turn.agent)

    def _forget_if_idle(self, name: AgentName) -> None:
        if self._agents[name].idle:
            del self._agents[name]

    def _refuse_engine_down(self, turn: TurnArrived) -> None:
        detail = self._floor.engine.detail or "it does not answer"
        self._effects.reject(turn.turn_id, Refusal.ENGINE_DOWN, f"the engine is down: {detail}", ENGINE_RETRY_S)

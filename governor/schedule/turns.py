"""Who may run now: the pure turn scheduler. No I/O, no clock, no lock; every event brings its time.

A turn runs when the engine is ready and has a slot, when its whole claim fits the KV ledger, when its agent's own
limits allow it, and when nobody who goes before it (:mod:`governor.schedule.order`) could run instead. A turn that does
not fit lets smaller ones pass, until its waiting budget is over: from then on nobody passes it. Running answers are
paused for those that have waited (:mod:`governor.schedule.slices`). Compactions pass the agent's own limits, since a
client whose compaction is refused loses its history (Hermes does); an answer that was begun passes them, too, and is
never refused.
"""

from __future__ import annotations

import msgspec

from governor.budget.ledger import Ledger
from governor.schedule.books import AgentBook
from governor.schedule.effects import Effects, Refusal
from governor.schedule.events import (
    EngineChanged,
    EngineMode,
    EngineSeen,
    FloorsChanged,
    SchedulerEvent,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnStarted,
    TurnWrote,
)
from governor.schedule.order import rank
from governor.schedule.room import Room
from governor.schedule.service import Service
from governor.schedule.slices import Candidate, Waiter, for_room, for_turn_in_engine
from governor.schedule.standing import Running, Waiting
from governor.schedule.window import ActiveWindow
from governor.types import AgentName, TurnId, TurnKind

ENGINE_RETRY_S = 10
LONGEST_TURN_S = 6 * 3600.0


class TurnScheduler:
    """Decides on events. All times are seconds of one monotonic clock."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._room = Room()
        self._engine = EngineChanged(EngineMode.COMING)
        self._service = Service()
        self._window = ActiveWindow()
        self._running: dict[TurnId, Running] = {}
        self._waiting: dict[TurnId, Waiting] = {}
        self._agents: dict[AgentName, AgentBook] = {}
        self._arrivals = 0

    @property
    def ledger(self) -> Ledger:
        """Who holds how much of L1; for display and for what reconciles."""
        return self._room.ledger

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def reasons(self) -> dict[TurnId, str]:
        """Why each waiting turn waits, in the order in which they are looked at; for display."""
        return {turn_id: waiting.reason for turn_id, waiting in self._waiting.items()}

    def on_event(self, now: float, event: SchedulerEvent) -> None:
        """Take an event; act through the effects. An event about an unknown turn changes nothing."""
        match event:
            case TurnWrote(turn_id, tokens):
                self._on_wrote(now, turn_id, tokens)
                return  # the only frequent one; it changes nothing for those that wait
            case TurnArrived():
                self._settle(now)  # whom time alone has let in or sent away since the last event comes first
                self._on_arrival(now, event)
            case TurnStarted(turn_id):
                if turn_id in self._running:
                    self._running[turn_id].started = True
            case TurnPaused():
                self._on_paused(now, event)
            case TurnEnded(turn_id, confirmed):
                self._stop(now, turn_id, confirmed=confirmed)
                self._forget_waiting(turn_id)
            case EngineChanged():
                self._on_engine(event)
            case EngineSeen():
                self.ledger.reconcile(now, event.sight)
                self._window.on_seen(now, self._room.occupancy, event.served_share)
            case FloorsChanged(floors):
                self._room.floors = floors
            case TimePassed():
                self.ledger.expire(now)
        self._settle(now)

    def next_deadline(self, now: float) -> float | None:
        """When time alone will change something."""
        moments: list[float] = []
        for waiting in self._waiting.values():
            turn = waiting.turn
            if not waiting.resumed:
                moments.append(waiting.since + turn.limits.hold_s)
            opens = self._agents[turn.agent].rate_opens(now, turn)
            ahead = [opens, waiting.due]
            if self._engine.pauses:
                ahead.append(waiting.since + turn.slices.yield_after_s)
            moments += [moment for moment in ahead if moment > now]
        if self._engine.pauses:
            moments += self._pause_moments(now)
        for other in (self.ledger.next_expiry(), self._window.next_change(now) if self._waiting else None):
            if other is not None:
                moments.append(other)
        return min(moments, default=None)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the books disagree with the turns they are about."""
        for name, agent in self._agents.items():
            running = sum(1 for each in self._running.values() if each.turn.agent == name)
            queued = sum(1 for waiting in self._waiting.values() if waiting.turn.agent == name)
            if (running, queued) != (agent.running, agent.queued):
                raise AssertionError(f"{name}: books {agent.running}/{agent.queued}, turns {running}/{queued}")
        owners = {each.turn.agent for each in self._running.values()}
        owners |= {waiting.turn.agent for waiting in self._waiting.values()}
        if not owners <= self._agents.keys():
            raise AssertionError(f"agents without books: {owners - self._agents.keys()}")
        if self._running.keys() & self._waiting.keys():
            raise AssertionError("a turn both runs and waits")
        for turn_id, each in self._running.items():
            if each.turn.claim is not None and not self.ledger.holds(turn_id):
                raise AssertionError(f"{turn_id} runs without a lease")
        self.ledger.check_integrity()

    # Events

    def _on_arrival(self, now: float, turn: TurnArrived) -> None:
        if turn.turn_id in self._running or turn.turn_id in self._waiting:
            raise ValueError(f"turn {turn.turn_id} arrived twice")
        if self._engine.mode is EngineMode.DOWN:
            self._refuse_engine_down(turn)
            return
        too_large = self._room.too_large(turn)
        if too_large is not None:
            self._effects.reject(turn.turn_id, Refusal.TOO_LARGE, too_large, 0)
            return
        agent = self._agents.setdefault(turn.agent, AgentBook())
        self._arrivals += 1
        waiting = Waiting(turn, now, self._arrivals)
        reason = self._hindrance(now, waiting) or self._held_back_by(now, waiting)
        if reason is None:
            self._grant(now, waiting)
        elif agent.queued >= turn.limits.queue and turn.kind is not TurnKind.COMPACTION:
            self._forget_if_idle(turn.agent)
            full = f"{agent.queued} turns of this agent wait already ({reason})"
            self._effects.reject(turn.turn_id, Refusal.BUSY, full, agent.retry_after(now, turn))
        else:
            self._enqueue(waiting, reason)

    def _on_paused(self, now: float, event: TurnPaused) -> None:
        running = self._stop(now, event.turn_id, confirmed=event.confirmed)
        if running is None:
            return
        self._arrivals += 1
        turn = msgspec.structs.replace(running.turn, claim=event.claim, new_tokens=0)
        self._agents.setdefault(turn.agent, AgentBook())
        self._enqueue(Waiting(turn, now, self._arrivals, resumed=True), "paused, so that others can run")

    def _on_wrote(self, now: float, turn_id: TurnId, tokens: int) -> None:
        """Reserve ahead of what is written; where there is no room for more, somebody makes it."""
        running = self._running.get(turn_id)
        claim = self.ledger.claim_of(turn_id)
        if running is None or claim is None or running.pausing or not self._engine.pauses:
            return
        step = running.turn.slices.lookahead
        if tokens <= claim.output_tokens - step // 4 or self.ledger.grow(turn_id, claim.output_tokens + step):
            return
        grown = msgspec.structs.replace(claim, output_tokens=claim.output_tokens + step)
        going = (turn_id, *(each for each, other in self._running.items() if other.pausing))
        if not self.ledger.shortage(grown, without=going):
            return  # somebody is making room already
        waiter = Waiter(turn=running.turn, attained=self._service.attained(running.turn.agent, now), overdue=False)
        victims = for_room(
            self._candidates(now), waiter, lambda out: not self.ledger.shortage(grown, without=(*going, *out))
        )
        for victim in victims or (turn_id,):
            self._pause(victim, f"L1 is full: {turn_id} has written {tokens:,} tokens and needs room for more")

    def _on_engine(self, event: EngineChanged) -> None:
        self._engine = event
        self.ledger.capacity = event.capacity
        if event.anew:
            claims = [each.turn.claim for each in self._running.values()]
            self.ledger.clear()
            for claim in claims:  # their turns are failing; until each says so its place is kept where it can be
                if claim is not None and not self.ledger.shortage(claim):
                    self.ledger.book(claim, 0.0, LONGEST_TURN_S)

    # Deciding

    def _settle(self, now: float) -> None:
        self._expire(now)
        self._grant_all(now)
        if self._engine.pauses and self._engine.mode is EngineMode.READY:
            self._pause_for_waiting(now)
            self._pause_for_stuck(now)

    def _expire(self, now: float) -> None:
        for waiting in tuple(self._waiting.values()):
            turn = waiting.turn
            if self._engine.mode is EngineMode.DOWN:
                self._forget_waiting(turn.turn_id)
                self._refuse_engine_down(turn)
            elif waiting.resumed or now - waiting.since < turn.limits.hold_s:
                continue
            elif self._hindrance(now, waiting) is not None:
                retry_s = self._agents[turn.agent].retry_after(now, turn)
                self._forget_waiting(turn.turn_id)
                reason = f"waited {now - waiting.since:.0f} s: {waiting.reason}"
                self._effects.reject(turn.turn_id, Refusal.BUSY, reason, retry_s)

    def _grant_all(self, now: float) -> None:
        for waiting in self._in_order(now):
            if self._engine.mode is not EngineMode.READY or self._engine_full():
                return
            reason = self._hindrance(now, waiting)
            if reason is None:
                self._agents[waiting.turn.agent].queued -= 1
                del self._waiting[waiting.turn.turn_id]
                self._grant(now, waiting)
                continue
            waiting.reason = reason
            if now >= waiting.due and self._lacks_room(waiting):
                return  # what becomes free is for this one

    def _held_back_by(self, now: float, newcomer: Waiting) -> str | None:
        """A turn beyond its budget that waits for room goes before every newcomer."""
        for waiting in self._waiting.values():
            if now >= waiting.due and self._lacks_room(waiting) and newcomer.turn.claim is not None:
                return f"{waiting.turn.agent} has waited {now - waiting.since:.0f} s for room and goes first"
        return None

    def _in_order(self, now: float) -> list[Waiting]:
        attained = {name: self._service.attained(name, now) for name in {w.turn.agent for w in self._waiting.values()}}
        ranked = [
            (rank(w.turn, due=w.due, now=now, attained=attained[w.turn.agent], number=w.number), w)
            for w in self._waiting.values()
        ]
        ranked.sort(key=lambda pair: pair[0])
        return [waiting for _, waiting in ranked]

    def _hindrance(self, now: float, waiting: Waiting) -> str | None:
        """Why a turn cannot run now, in words; ``None`` if it can."""
        turn = waiting.turn
        if self._engine.mode is not EngineMode.READY:
            return "the engine is not ready yet"
        if self._engine_full():
            return f"all {self._engine.slots} engine slots are taken"
        if not waiting.resumed:
            own = self._agents[turn.agent].hindrance(now, turn) or self._busy_session(turn)
            if own is not None:
                return own
        if not self._window.admits(turn.agent, now):
            return f"{self._window.members} agents share the cache now, as many as it carries"
        return self._room.missing_for(turn)

    def _busy_session(self, turn: TurnArrived) -> str | None:
        if turn.session is None or turn.kind is TurnKind.COMPACTION:
            return None
        if any(each.turn.session == turn.session for each in self._running.values()):
            return "an earlier turn of this conversation runs"
        return None

    def _lacks_room(self, waiting: Waiting) -> bool:
        return self._engine_full() or self._room.missing_for(waiting.turn) is not None

    def _grant(self, now: float, waiting: Waiting) -> None:
        turn = waiting.turn
        agent = self._agents[turn.agent]
        agent.running += 1
        if not waiting.resumed:
            agent.note_grant(now)
        if turn.claim is not None:
            self.ledger.book(turn.claim, now, LONGEST_TURN_S)
        self._service.hold(turn.agent, now, turn.tokens / turn.share.weight)
        self._window.on_granted(turn.agent, now)
        self._running[turn.turn_id] = Running(turn, now)
        free = self.ledger.free_tokens
        room = "" if free is None or turn.claim is None else f"; {turn.claim.tokens:,} KV tokens booked, {free:,} free"
        self._effects.grant(
            turn.turn_id, f"{'goes on' if waiting.resumed else 'runs'} after {now - waiting.since:.1f} s{room}"
        )

    def _enqueue(self, waiting: Waiting, reason: str) -> None:
        waiting.reason = reason
        self._agents[waiting.turn.agent].queued += 1
        self._waiting[waiting.turn.turn_id] = waiting
        self._effects.queue(waiting.turn.turn_id, reason)

    # Pausing

    def _pause_for_waiting(self, now: float) -> None:
        for waiting in self._in_order(now):
            turn = waiting.turn
            if now - waiting.since < turn.slices.yield_after_s or not self._lacks_room(waiting):
                continue
            own = None if waiting.resumed else self._agents[turn.agent].hindrance(now, turn)
            if own is not None or not self._window.admits(turn.agent, now):
                continue
            going = tuple(turn_id for turn_id, each in self._running.items() if each.pausing)
            if self._would_fit(turn, going):
                return  # it has been seen to
            waiter = Waiter(turn=turn, attained=self._service.attained(turn.agent, now), overdue=now >= waiting.due)
            victims = for_room(self._candidates(now), waiter, lambda out: self._would_fit(turn, (*going, *out)))  # noqa: B023
            for victim in victims:
                self._pause(victim, f"{turn.agent} has waited {now - waiting.since:.0f} s: {waiting.reason}")
            return  # one at a time: what becomes free is for the first in order

    def _pause_for_stuck(self, now: float) -> None:
        """A granted turn without its first token, behind a long prefill of somebody granted earlier."""
        for each in self._running.values():
            waited = now - each.granted_at
            if each.started or each.pausing or waited < each.turn.slices.yield_after_s:
                continue
            before = [c for c in self._candidates(now) if c.ran_s > waited]
            waiter = Waiter(turn=each.turn, attained=self._service.attained(each.turn.agent, now), overdue=False)
            for victim in for_turn_in_engine(before, waiter):
                self._pause(victim, f"its prefill has kept {each.turn.agent} waiting in the engine for {waited:.0f} s")
                return

    def _pause(self, turn_id: TurnId, reason: str) -> None:
        self._running[turn_id].pausing = True
        self._effects.pause(turn_id, reason)

    def _would_fit(self, turn: TurnArrived, without: tuple[TurnId, ...]) -> bool:
        slots, left = self._engine.slots, len(self._running) - len(without)
        return (slots is None or left < slots) and (left == 0 or self._room.fits_without(turn, without))

    def _candidates(self, now: float) -> list[Candidate]:
        return [
            Candidate(
                turn=each.turn,
                ran_s=now - each.granted_at,
                attained=self._service.attained(each.turn.agent, now),
                started=each.started,
            )
            for each in self._running.values()
            if not each.pausing
        ]

    def _pause_moments(self, now: float) -> list[float]:
        """When a quantum, or the patience of one inside the engine, is over."""
        if not self._waiting and all(each.started for each in self._running.values()):
            return []
        moments = [each.granted_at + each.turn.slices.quantum_s for each in self._running.values()]
        moments += [
            each.granted_at + each.turn.slices.yield_after_s for each in self._running.values() if not each.started
        ]
        return [moment for moment in moments if moment > now]

    # Books

    def _engine_full(self) -> bool:
        return self._engine.slots is not None and len(self._running) >= self._engine.slots

    def _stop(self, now: float, turn_id: TurnId, *, confirmed: bool) -> Running | None:
        running = self._running.pop(turn_id, None)
        if running is None:
            return None
        turn = running.turn
        self.ledger.release(turn_id, now, confirmed=confirmed)
        self._service.hold(turn.agent, now, -turn.tokens / turn.share.weight)
        self._window.on_ended(turn.agent, now)
        self._agents[turn.agent].running -= 1
        self._forget_if_idle(turn.agent)
        return running

    def _forget_waiting(self, turn_id: TurnId) -> None:
        waiting = self._waiting.pop(turn_id, None)
        if waiting is not None:
            self._agents[waiting.turn.agent].queued -= 1
            self._forget_if_idle(waiting.turn.agent)

    def _forget_if_idle(self, name: AgentName) -> None:
        if self._agents[name].idle:
            del self._agents[name]

    def _refuse_engine_down(self, turn: TurnArrived) -> None:
        detail = self._engine.detail or "it does not answer"
        self._effects.reject(turn.turn_id, Refusal.ENGINE_DOWN, f"the engine is down: {detail}", ENGINE_RETRY_S)

"""Who may run now: the pure turn scheduler. No I/O, no clock, no lock; every event brings its time.

Today's rules: at most ``slots`` turns on the engine, at most ``concurrency`` of one agent, at most
``turns_per_minute`` admitted in any minute, classes first to last, first come first served inside a class. A turn
that cannot run waits; it is refused when its agent's queue is full or it has waited ``hold_s``. Compactions pass the
agent's own limits, since a client whose compaction is refused loses its history (Hermes does).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from governor.policy.model import LimitPolicy
from governor.schedule.effects import Effects, Refusal
from governor.types import AgentClass, AgentName, TurnId, TurnKind

_MINUTE_S = 60.0
_ENGINE_RETRY_S = 10
_CLASS_RANK = {agent_class: rank for rank, agent_class in enumerate(AgentClass)}


class TurnArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A turn asks to run. ``limits`` is the policy snapshot it began with."""

    turn_id: TurnId
    agent: AgentName
    agent_class: AgentClass
    kind: TurnKind
    limits: LimitPolicy


class TurnEnded(msgspec.Struct, frozen=True):
    """A running turn has closed, or a waiting one is not waited for any more, however that came."""

    turn_id: TurnId


class EngineMode(StrEnum):
    """What the scheduler needs to know of the engine's state."""

    READY = "ready"
    COMING = "coming"
    """Starting or restarting: turns are held."""
    DOWN = "down"
    """Gone, and nobody is starting it: turns are refused."""


class EngineChanged(msgspec.Struct, frozen=True):
    """The engine's state; ``slots`` bounds how many turns at once (``None``: no bound known)."""

    mode: EngineMode
    slots: int | None = None
    detail: str = ""


class TimePassed(msgspec.Struct, frozen=True):
    """Nothing but time has happened."""


SchedulerEvent = TurnArrived | TurnEnded | EngineChanged | TimePassed


class _Waiting(msgspec.Struct):
    turn: TurnArrived
    since: float
    reason: str = ""


class _Agent(msgspec.Struct):
    running: int = 0
    queued: int = 0
    granted_at: deque[float] = msgspec.field(default_factory=deque)

    @property
    def idle(self) -> bool:
        return not self.running and not self.queued and not self.granted_at

    def forget_before(self, moment: float) -> None:
        """Forget grants that no rate looks at any more."""
        while self.granted_at and self.granted_at[0] <= moment:
            self.granted_at.popleft()


class TurnScheduler:
    """Decides on events. All times are seconds of one monotonic clock."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._engine = EngineChanged(EngineMode.COMING)
        self._running: dict[TurnId, TurnArrived] = {}
        self._waiting: dict[TurnId, _Waiting] = {}
        self._agents: dict[AgentName, _Agent] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def on_event(self, now: float, event: SchedulerEvent) -> None:
        """Take an event; act through the effects. An event about an unknown turn changes nothing."""
        match event:
            case TurnArrived():
                self._settle(now)  # whom time alone has let in or sent away since the last event comes first
                self._on_arrival(now, event)
            case TurnEnded(turn_id):
                self._remove(turn_id)
            case EngineChanged():
                self._engine = event
            case TimePassed():
                pass
        self._settle(now)

    def next_deadline(self, now: float) -> float | None:
        """When time alone will change something: a hold runs out or a rate window opens."""
        deadlines = [waiting.since + waiting.turn.limits.hold_s for waiting in self._waiting.values()]
        for waiting in self._waiting.values():
            opens = self._rate_opens(now, waiting.turn)
            if opens > now:
                deadlines.append(opens)
        return min(deadlines, default=None)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the books disagree with the turns they are about."""
        for name, agent in self._agents.items():
            running = sum(1 for turn in self._running.values() if turn.agent == name)
            queued = sum(1 for waiting in self._waiting.values() if waiting.turn.agent == name)
            if (running, queued) != (agent.running, agent.queued):
                raise AssertionError(f"{name}: books {agent.running}/{agent.queued}, turns {running}/{queued}")
        owners = {turn.agent for turn in self._running.values()}
        owners |= {waiting.turn.agent for waiting in self._waiting.values()}
        if not owners <= self._agents.keys():
            raise AssertionError(f"agents without books: {owners - self._agents.keys()}")
        if self._running.keys() & self._waiting.keys():
            raise AssertionError("a turn both runs and waits")

    def _on_arrival(self, now: float, turn: TurnArrived) -> None:
        if turn.turn_id in self._running or turn.turn_id in self._waiting:
            raise ValueError(f"turn {turn.turn_id} arrived twice")
        if self._engine.mode is EngineMode.DOWN:
            self._refuse_engine_down(turn)
            return
        agent = self._agents.setdefault(turn.agent, _Agent())
        reason = self._hindrance(now, turn)
        if reason is None:
            self._grant(now, turn)
        elif agent.queued >= turn.limits.queue and turn.kind is not TurnKind.COMPACTION:
            self._forget_if_idle(turn.agent)
            full = f"{agent.queued} turns of this agent wait already ({reason})"
            self._effects.reject(turn.turn_id, Refusal.BUSY, full, self._retry_after(now, turn))
        else:
            agent.queued += 1
            self._waiting[turn.turn_id] = _Waiting(turn, now, reason)
            self._effects.queue(turn.turn_id, reason)

    def _remove(self, turn_id: TurnId) -> None:
        running = self._running.pop(turn_id, None)
        if running is not None:
            self._agents[running.agent].running -= 1
            self._forget_if_idle(running.agent)
        waiting = self._waiting.pop(turn_id, None)
        if waiting is not None:
            self._agents[waiting.turn.agent].queued -= 1
            self._forget_if_idle(waiting.turn.agent)

    def _settle(self, now: float) -> None:
        self._expire(now)
        self._grant_all(now)

    def _expire(self, now: float) -> None:
        for waiting in tuple(self._waiting.values()):
            turn = waiting.turn
            if self._engine.mode is EngineMode.DOWN:
                self._remove(turn.turn_id)
                self._refuse_engine_down(turn)
            elif now - waiting.since >= turn.limits.hold_s and self._hindrance(now, turn) is not None:
                self._remove(turn.turn_id)
                reason = f"waited {now - waiting.since:.0f} s: {waiting.reason}"
                self._effects.reject(turn.turn_id, Refusal.BUSY, reason, self._retry_after(now, turn))

    def _refuse_engine_down(self, turn: TurnArrived) -> None:
        detail = self._engine.detail or "it does not answer"
        self._effects.reject(turn.turn_id, Refusal.ENGINE_DOWN, f"the engine is down: {detail}", _ENGINE_RETRY_S)

    def _grant_all(self, now: float) -> None:
        for waiting in self._in_order():
            if self._engine.mode is not EngineMode.READY or self._engine_full():
                return
            if self._hindrance(now, waiting.turn) is None:
                del self._waiting[waiting.turn.turn_id]
                self._agents[waiting.turn.agent].queued -= 1
                self._grant(now, waiting.turn)

    def _in_order(self) -> Iterator[_Waiting]:
        """Class first, then arrival; dicts keep arrival order and ``sorted`` is stable."""
        return iter(sorted(self._waiting.values(), key=lambda w: _CLASS_RANK[w.turn.agent_class]))

    def _grant(self, now: float, turn: TurnArrived) -> None:
        agent = self._agents[turn.agent]
        agent.running += 1
        agent.forget_before(now - _MINUTE_S)
        agent.granted_at.append(now)
        self._running[turn.turn_id] = turn
        self._effects.grant(turn.turn_id)

    def _engine_full(self) -> bool:
        return self._engine.slots is not None and len(self._running) >= self._engine.slots

    def _hindrance(self, now: float, turn: TurnArrived) -> str | None:
        """Why a turn cannot run now, in words; ``None`` if it can."""
        if self._engine.mode is not EngineMode.READY:
            return "the engine is not ready yet"
        if self._engine_full():
            return f"all {self._engine.slots} engine slots are taken"
        if turn.kind is TurnKind.COMPACTION:
            return None
        if self._agents[turn.agent].running >= turn.limits.concurrency:
            return f"this agent runs {turn.limits.concurrency} at once, its limit"
        if self._rate_opens(now, turn) > now:
            return f"this agent had {turn.limits.turns_per_minute} turns within a minute, its limit"
        return None

    def _rate_opens(self, now: float, turn: TurnArrived) -> float:
        """When the agent's rate lets one more in; ``now`` if it does already."""
        agent = self._agents[turn.agent]
        agent.forget_before(now - _MINUTE_S)
        granted = agent.granted_at
        limit = turn.limits.turns_per_minute
        if limit is None or turn.kind is TurnKind.COMPACTION or len(granted) < limit:
            return now
        return granted[len(granted) - limit] + _MINUTE_S

    def _retry_after(self, now: float, turn: TurnArrived) -> int:
        """Seconds after which asking again makes sense. Two waits of it carry Hermes through, which tries thrice."""
        agent = self._agents.get(turn.agent)
        opens = self._rate_opens(now, turn) if agent is not None else now
        return max(5, math.ceil(opens - now))

    def _forget_if_idle(self, name: AgentName) -> None:
        if self._agents[name].idle:
            del self._agents[name]

"""Turns on the engine: sends them, hears of them, takes one off in the middle of its answer and sends it again.

Between the simulator, which thinks in turns, and the engine's twin, which knows requests: a turn that is paused is one
turn and several requests.
"""

from __future__ import annotations

from typing import Protocol

from governor.simulate.flight import Flight
from governor.simulate.result import TurnEnd, WaitPlace
from governor.simulate.seen import Seen
from governor.types import AgentName
from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Admitted, Ended, EndReason, EngineEvent, Retracted, Wrote

QUEUED = "in the engine's queue"
_ENDS = {
    EndReason.STOP: TurnEnd.STOP,
    EndReason.LENGTH: TurnEnd.LENGTH,
    EndReason.TOO_LONG: TurnEnd.TOO_LONG,
    EndReason.QUEUE_FULL: TurnEnd.QUEUE_FULL,
    EndReason.OUT_OF_MEMORY: TurnEnd.OUT_OF_MEMORY,
}


class Crew(Protocol):
    """Who is told."""

    def on_started(self, flight: Flight) -> None:
        """Its first token since it was sent."""
        ...

    def on_landed(self, flight: Flight, end: TurnEnd) -> None:
        """The engine has ended it."""
        ...

    def on_paused(self, flight: Flight) -> None:
        """It is off the engine, and can be sent again."""
        ...


class Floor:
    """Everything that is on the engine."""

    def __init__(self, engine: TwinEngine, crew: Crew) -> None:
        self._engine = engine
        self._crew = crew
        self._flights: dict[str, Flight] = {}
        self._forgotten: dict[str, Flight] = {}
        """Their clients have gone; the engine has not ended them."""
        self._seen = Seen()

    def agents(self) -> tuple[AgentName, ...]:
        """Whose turns run, each once."""
        running = (flight for flight in self._flights.values() if not flight.is_waiting)
        return tuple(dict.fromkeys(flight.request.agent for flight in running))

    def new_tokens(self, flight: Flight) -> int:
        """Of its context, what nobody has had computed."""
        context = flight.context
        return len(context) - self._seen.prefix_tokens(context)

    def send(self, now: float, flight: Flight) -> None:
        """Let a turn to the engine: all of it, or what is left of it."""
        behind = self.agents()
        flight.on_granted(now)
        flight.begin_wait(now, WaitPlace.ENGINE, QUEUED, behind)
        self._flights[flight.rid] = flight
        self._engine.submit(max(now, self._engine.now), flight.ask(self._engine.settings.context_tokens))

    def explain(self) -> None:
        """Say of those that wait in the engine what they wait for, as far as it is for room."""
        blocked = self._engine.blocked()
        if blocked is None:
            return
        need = f"{blocked.wanted_tokens:,} tokens of L1, {max(0, blocked.free_tokens):,} were free at the last look"
        first = self._flights.get(blocked.rid)
        for flight in self._flights.values():
            if not flight.is_waiting:
                continue
            if first is None:
                if flight.wait_reason == QUEUED:  # else it is known who that was
                    flight.explain_wait(f"NO_TOKEN: full since one that has gone needed {need}")
            elif flight is first:
                flight.explain_wait(f"NO_TOKEN: needs {need}")
            elif blocked.is_full or flight.entered_after(first):
                flight.explain_wait(f"NO_TOKEN: behind {first.request.agent}, which needs {need}")

    def pause(self, now: float, flight: Flight, reason: str) -> None:
        """Take it off the engine; what it has written is kept. If it ends by itself first, it has ended."""
        flight.pause_reason = reason
        self._engine.abort(max(now, self._engine.now), flight.rid)

    def forget(self, flight: Flight) -> str:
        """Nobody waits for it any more. Returns the request that is to be aborted."""
        del self._flights[flight.rid]
        self._forgotten[flight.rid] = flight
        return flight.rid

    def abort(self, now: float, rid: str) -> None:
        """End a request that was forgotten; one that has ended meanwhile is no matter."""
        self._engine.abort(max(now, self._engine.now), rid)

    def take(self, event: EngineEvent) -> None:
        """The engine has something to tell."""
        flight = self._flights.get(event.rid)
        if flight is None:
            if isinstance(event, Ended):
                self._leave(self._forgotten.pop(event.rid), event)
            return
        match event:
            case Admitted():
                flight.on_admitted(event, self.new_tokens(flight))
            case Wrote():
                is_first = flight.written_since_grant == 0
                if is_first:
                    self._seen.add(flight.context)
                flight.on_wrote(event)
                if is_first:
                    self._crew.on_started(flight)
            case Retracted():
                flight.on_retracted(event.at, self.agents())
            case Ended():
                self._end(flight, event)

    def _end(self, flight: Flight, event: Ended) -> None:
        del self._flights[event.rid]
        reason, flight.pause_reason = flight.pause_reason, ""
        self._leave(flight, event)
        if event.reason is not EndReason.ABORT:
            self._crew.on_landed(flight, _ENDS[event.reason])
        elif reason:
            flight.begin_wait(event.at, WaitPlace.GOVERNOR, f"paused: {reason}", self.agents())
            self._crew.on_paused(flight)
        else:
            raise ValueError(f"the engine has aborted {event.rid}, which nobody asked for")

    def _leave(self, flight: Flight, event: Ended) -> None:
        """Take note of what the engine has computed of it."""
        context = flight.context
        if flight.written_since_grant == 0:
            context = context.cut(0, event.cached.tokens + event.prefilled_tokens)
        self._seen.add(context)
        flight.on_left(event.at, event.prefilled_tokens)

"""The gateway's own deciding code in virtual time: policies, output caps, KV leases and the turn scheduler, unchanged.

The simulator stands where the gateway's HTTP side does: it asks for a turn, tells how it goes on, and is told of
grants, waits, pauses and refusals through the scheduler's ``Effects``.
"""

from __future__ import annotations

import math
from collections import deque
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from governor.budget.claim import Capacity, Claim, Segment, Sight
from governor.budget.ledger import Freed
from governor.errors import ContextOverflow
from governor.names import policy_path
from governor.output.caps import decide_cap, effective_window
from governor.policy.loader import load_shipped, read_agent, shipped_folder
from governor.policy.model import Policy
from governor.policy.resolve import DEFAULT, resolve_agent
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    EngineChanged,
    EngineMode,
    EngineSeen,
    SchedulerEvent,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnStarted,
    TurnWrote,
)
from governor.schedule.retention import Retention
from governor.schedule.turns import TurnScheduler
from governor.simulate.acts import Request
from governor.simulate.flight import Flight
from governor.simulate.resting import Contexts, fetch_turn
from governor.simulate.result import TurnEnd
from governor.types import TokenCount, TurnId, TurnKind
from serve.twin.engine_model import EngineSettings, Load
from serve.twin.tiers_key import Key
from serve.twin.trace import Trace

Policies = dict[str, Policy]
"""By agent, resolved."""

FETCH_EVERY_S = 1.0
LATELY = 16
"""Ended turns that the share served from cache is of."""
_ENDS = {
    Refusal.BUSY: TurnEnd.REFUSED,
    Refusal.HELD: TurnEnd.REFUSED,
    Refusal.ENGINE_DOWN: TurnEnd.QUEUE_FULL,
    Refusal.TOO_LARGE: TurnEnd.OVERFLOW,
}


def read_policies(trace: Trace, folder: Path | None = None) -> Policies:
    """A policy for each agent of the trace: its own file in ``folder``; or the shipped one that the trace names; or the
    default. Raises :class:`~governor.errors.ConfigError`, and :class:`~governor.errors.BadRequest` for an agent whose
    name cannot be a file's."""
    shipped = load_shipped(shipped_folder())
    policies: Policies = {}
    for agent in trace.agents:
        own = None if folder is None else read_agent(policy_path(folder, agent.name), shipped)
        if own is None:
            own = resolve_agent(shipped.get(agent.policy or DEFAULT), shipped)
        policies[agent.name] = own.policy
    return policies


class Host(Protocol):
    """Who does what is decided. Calls must not come back to the governor."""

    def on_granted(self, flight: Flight) -> None:
        """It may go to the engine, or go on there."""
        ...

    def on_held(self, flight: Flight, reason: str) -> None:
        """It waits here."""
        ...

    def on_pause_asked(self, flight: Flight, reason: str) -> None:
        """It is to leave the engine, so that it can go on later."""
        ...

    def on_refused(self, flight: Flight, end: TurnEnd, reason: str, retry_after_s: int | None) -> None:
        """It is over."""
        ...

    def on_fetch(self, request: Request) -> Flight:
        """A request of the governor's own, which arrives when this has returned."""
        ...

    def on_fetch_given_up(self, flight: Flight) -> None:
        """It is to leave the engine, for good."""
        ...


class Decider(Protocol):
    """Who decides about turns: the governor, or a rule that it is compared with. Acts through its :class:`Host`."""

    @property
    def held(self) -> int:
        """Turns that wait here."""
        ...

    def policy_of(self, flight: Flight) -> Policy: ...

    def arrive(self, now: float, flight: Flight, new_tokens: int) -> None:
        """A request has come in: cap it and ask for leave. ``new_tokens``: of its prompt, what nobody has sent yet."""
        ...

    def on_started(self, now: float, flight: Flight) -> None:
        """The first token since the last grant."""
        ...

    def on_wrote(self, now: float, flight: Flight) -> None:
        """It has written more."""
        ...

    def on_paused(self, now: float, flight: Flight) -> None:
        """It is off the engine and wants to go on."""
        ...

    def on_ended(self, now: float, flight: Flight, *, confirmed: bool) -> None:
        """A turn has closed, however that came. ``confirmed``: the engine has nothing of it any more."""
        ...

    def on_seen(self, now: float, load: Load) -> None:
        """A look at the engine, as the gateway asks for it every so often."""
        ...

    def pass_time(self, now: float) -> None:
        """A deadline has come."""
        ...

    def next_deadline(self, now: float) -> float | None: ...


class Governor:
    """Decides about turns; is the scheduler's ``Effects``."""

    def __init__(self, policies: Policies, engine: EngineSettings, host: Host) -> None:
        self._policies = policies
        self._engine = engine
        self._host = host
        self._scheduler = TurnScheduler(self)
        self.retention = Retention()
        self._contexts = Contexts()
        self._fetching: Flight | None = None
        self._fetches_at = 0.0 if any(each.share.prewarm for each in policies.values()) else math.inf
        """When it is next looked whether somebody is to be fetched."""
        self._flights: dict[TurnId, Flight] = {}
        self._events: deque[SchedulerEvent] = deque()
        self._served: deque[tuple[int, int]] = deque(maxlen=LATELY)
        tiers = engine.tiers
        capacity = Capacity(
            tokens=tiers.page_floor(tiers.device_tokens), slots=tiers.device_slots if tiers.has_states else None
        )
        ready = EngineChanged(EngineMode.READY, engine.max_running_requests, capacity=capacity, pauses=True)
        self._post(0.0, ready)

    @property
    def held(self) -> int:
        """Turns that wait here."""
        return self._scheduler.waiting

    def policy_of(self, flight: Flight) -> Policy:
        return self._policies[flight.request.agent]

    def arrive(self, now: float, flight: Flight, new_tokens: int) -> None:
        """A request has come in: cap it and ask for leave. ``new_tokens``: of its prompt, what nobody has sent yet."""
        if self._fetching is not None and self._fetching.turn_id in self._flights:
            self._host.on_fetch_given_up(self._fetching)
        policy, request = self.policy_of(flight), flight.request
        try:
            cap = decide_cap(
                policy,
                request.kind,
                requested=request.cap,
                prompt=TokenCount(tokens=flight.prompt_tokens, source="engine"),
                window_tokens=effective_window(self._engine.context_tokens, policy),
                tools_usable=request.kind is TurnKind.TOOL_STEP,
            )
        except ContextOverflow as overflow:
            self._host.on_refused(flight, TurnEnd.OVERFLOW, overflow.message, None)
            return
        flight.cap = cap.tokens
        self._flights[flight.turn_id] = flight
        arrived = TurnArrived(
            turn_id=flight.turn_id,
            agent=request.agent,
            agent_class=policy.agent_class,
            kind=request.kind,
            limits=policy.limits,
            share=policy.share,
            slices=policy.slices,
            claim=self._claim(flight),
            new_tokens=new_tokens,
            session=f"{request.agent}/{request.session}",
            context=self._contexts.name_of(request),
            prefix_tokens=flight.prompt_tokens - new_tokens,
        )
        self._post(now, arrived)

    def on_started(self, now: float, flight: Flight) -> None:
        """The first token since the last grant."""
        self._post(now, TurnStarted(flight.turn_id))

    def on_wrote(self, now: float, flight: Flight) -> None:
        """It has written more."""
        self._post(now, TurnWrote(flight.turn_id, flight.written_since_grant))

    def on_paused(self, now: float, flight: Flight) -> None:
        """It is off the engine and wants to go on."""
        self._post(now, TurnPaused(turn_id=flight.turn_id, claim=self._claim(flight)))

    def on_ended(self, now: float, flight: Flight, *, confirmed: bool) -> None:
        """A turn has closed, however that came. ``confirmed``: the engine has nothing of it any more."""
        if self._flights.pop(flight.turn_id, None) is None:
            return
        if flight.was_admitted and flight.request.fetches is None:
            self._served.append((flight.cached_tokens, flight.prompt_tokens - flight.new_tokens))
        context = self.retention.context_of(flight.turn_id)
        left = None if context is None else self._contexts.on_answered(context, flight)
        self._post(now, TurnEnded(flight.turn_id, confirmed, left))

    def on_seen(self, now: float, load: Load) -> None:
        """A look at the engine, as the gateway asks for it every so often."""
        served, could = (sum(column) for column in zip(*self._served, strict=True)) if self._served else (0, 0)
        share = served / could if could and len(self._served) == LATELY else None
        sight = Sight(asked_at=now, running=load.running, used_tokens=load.used_tokens)
        self._post(now, EngineSeen(sight=sight, served_share=share))

    def _fetch(self, now: float) -> None:
        """Bring somebody back into L1 while nobody else wants the engine."""
        if self._scheduler.waiting or (self._fetching is not None and self._fetching.turn_id in self._flights):
            return
        held_tokens = self._scheduler.ledger.held_tokens
        rest = self.retention.to_fetch(now, held_tokens=held_tokens, having=self._contexts.held)
        if rest is None:
            return
        flight = self._host.on_fetch(self._contexts.fetch_of(now, rest))
        flight.cap = 1
        self._fetching = self._flights[flight.turn_id] = flight
        self._post(now, fetch_turn(flight, self._claim(flight)))

    def pass_time(self, now: float) -> None:
        """A deadline has come."""
        self._post(now, TimePassed())
        if now >= self._fetches_at:
            self._fetches_at = now + FETCH_EVERY_S
            self._fetch(now)

    def next_deadline(self, now: float) -> float | None:
        moment = self._scheduler.next_deadline(now)
        return moment if self._fetches_at == math.inf else min(self._fetches_at, math.inf if moment is None else moment)

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def grant(self, turn_id: TurnId, why: str) -> None:
        self.retention.on_granted(turn_id)
        self._host.on_granted(self._flights[turn_id])

    def queue(self, turn_id: TurnId, reason: str) -> None:
        self._host.on_held(self._flights[turn_id], reason)

    def pause(self, turn_id: TurnId, reason: str) -> None:
        self._host.on_pause_asked(self._flights[turn_id], reason)

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        self._host.on_refused(self._flights.pop(turn_id), _ENDS[refusal], reason, retry_after_s)
        self._events.append(TurnEnded(turn_id))  # as a lease posts on every exit

    def take_back(self, freed: Freed) -> None:
        """Nobody waits for it."""

    def _claim(self, flight: Flight) -> Claim:
        """What it needs from here on: what is written is a part of its prompt."""
        is_fetch = flight.request.fetches is not None
        lookahead = 1 if is_fetch else self.policy_of(flight).slices.lookahead
        return Claim(
            turn_id=flight.turn_id,
            agent=flight.request.agent,
            segments=_segments(flight.context),
            output_tokens=min(flight.cap - flight.written, lookahead),
            most_output_tokens=flight.cap - flight.written,
            slots=self._engine.tiers.slots_per_request,
        )

    def _post(self, now: float, event: SchedulerEvent) -> None:
        self._events.append(event)
        while self._events:
            self._scheduler.on_event(now, self.retention.on_event(now, self._events.popleft()))


def _segments(key: Key) -> tuple[Segment, ...]:
    """A run each, told by all that stands before it, too."""
    digest = blake2b(digest_size=16)
    segments = []
    for source, start, stop in key.runs:
        digest.update(b"%d:%d:%d;" % (source, start, stop))
        segments.append(Segment(digest.digest(), stop - start))
    return tuple(segments)

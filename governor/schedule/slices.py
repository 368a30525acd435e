"""Which running answers make room for a turn that waits. Pure.

A running decode cannot be pushed out by the engine, however long others wait (SGLang has no preemption for KV); it is
stopped from outside, keeps what it wrote, and goes on later from exactly there. That costs it the return of its
context, so it happens only when somebody has really waited, and only to an answer that has had its quantum, counted
from its first token. Whom:

* never one of a better class than the waiter's, unless the waiter has waited beyond its budget;
* in the same class only one whose agent has had more service than the waiter's, unless the waiter is over its budget;
* of those the one with the most service whose room alone suffices, else as few as suffice in that order; nobody is
  stopped if all together do not suffice.

A stopped prefill loses the chunk under way and its place, so one that is stopped too often never gets to its first
token: two long ones that stop each other compute the same chunks for hours. It is stopped after
:data:`PREFILL_QUANTA` for a turn with less than half as much to prefill, after :data:`OVERDUE_QUANTA` for one that is
beyond its budget, and for that each time later than the time before.

ThunderAgent stops the smallest first and cannot stop a decode; its replay of the incident kept the small agents waiting
for 21 to 35 minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from governor.schedule.events import TurnArrived
from governor.schedule.order import class_rank
from governor.types import TurnId

PREFILL_QUANTA = 2
"""On the machine of the field a chunk takes 2 to 4 s and a context comes back in 1 to 8 s: of 30 s at most a third is
lost."""
OVERDUE_QUANTA = 4
"""A minute, of which a prompt of 40K to 100K is computed."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A running answer, as the choice sees it."""

    turn: TurnArrived
    granted_at: float
    quanta: float
    """How many it has had since its first token; before that, since its prefill began."""
    stops: int
    """How often it was stopped before its first token, in a row."""
    attained: float
    """Its agent's service."""
    started: bool
    """It has its first token; before that it is in its prefill, or waits inside the engine."""


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """The turn that room is looked for."""

    turn: TurnArrived
    attained: float
    overdue: bool


def may_pause(candidate: Candidate, waiter: Waiter) -> bool:
    """Whether this answer may be stopped for this turn."""
    turn = candidate.turn
    if not turn.slices.enabled or turn.turn_id == waiter.turn.turn_id or candidate.quanta < _least(candidate, waiter):
        return False
    if waiter.overdue:
        return True
    own, other = class_rank(turn.agent_class), class_rank(waiter.turn.agent_class)
    return own > other or (own == other and candidate.attained > waiter.attained)


def _least(candidate: Candidate, waiter: Waiter) -> float:
    """Quanta that the candidate has before it is stopped for this waiter."""
    if candidate.started:
        return 1
    if candidate.turn.prefill_tokens > 2 * waiter.turn.prefill_tokens:
        return PREFILL_QUANTA
    return OVERDUE_QUANTA * (1 + candidate.stops) if waiter.overdue else math.inf


def for_room(
    candidates: Sequence[Candidate], waiter: Waiter, suffices: Callable[[tuple[TurnId, ...]], bool]
) -> tuple[TurnId, ...]:
    """Answers to stop so that the waiter fits; empty if that cannot be had."""
    eligible = sorted((c for c in candidates if may_pause(c, waiter)), key=lambda c: -c.attained)
    for each in eligible:
        if suffices((each.turn.turn_id,)):
            return (each.turn.turn_id,)
    chosen: list[TurnId] = []
    for each in eligible:
        chosen.append(each.turn.turn_id)
        if suffices(tuple(chosen)):
            return tuple(chosen)
    return ()


def for_turn_in_engine(candidates: Sequence[Candidate], waiter: Waiter) -> tuple[TurnId, ...]:
    """The long prefill to stop for a turn that was granted and waits inside the engine, behind it."""
    prefills = [c for c in candidates if not c.started and may_pause(c, waiter)]
    return (max(prefills, key=lambda c: c.turn.prefill_tokens).turn.turn_id,) if prefills else ()

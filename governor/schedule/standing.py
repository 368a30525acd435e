"""What the turn scheduler keeps of a turn while it runs, and while it waits. Values only."""

from __future__ import annotations

import msgspec

from governor.budget.ledger import GRACE_S
from governor.schedule.events import TurnArrived
from governor.types import AgentClass

WAITING_S = {AgentClass.INTERACTIVE: 15.0, AgentClass.NORMAL: 40.0, AgentClass.BACKGROUND: 300.0}


class Running(msgspec.Struct):
    turn: TurnArrived
    granted_at: float
    since: float
    """From when on its quantum counts: from its first token; before that, from when the engine, which prefills one
    prompt after the other, could turn to it at the earliest."""
    resumed: bool
    """Again, after a pause."""
    stops: int
    """How often it was stopped before its first token, in a row."""
    started: bool = False
    is_lost: bool = False
    """Its engine is gone, and the new one has no room for it: its end is on the way."""
    asked_at: float | None = None
    """When it was asked to stop."""
    yields: bool = False
    """The owner has asked, so that others go first."""

    def is_making_room(self, now: float) -> bool:
        """It was asked to stop and is about to. One that has not for so long writes the end of its answer, or cannot:
        it is asked no more, and nobody reckons with its room."""
        return self.asked_at is not None and now < self.asked_at + GRACE_S


class Waiting(msgspec.Struct):
    turn: TurnArrived
    since: float
    number: int
    """Counts arrivals; one that waits again has a new one."""
    resumed: bool = False
    stops: int = 0
    """How often it was stopped before its first token, in a row."""
    patient_for_s: float = 0.0
    """What its client had waited for the same prompt, before it hung up and asked again. Negative: so much of its wait
    does not count."""
    yields: bool = False
    """It lets those go first that came to wait before it."""

    @property
    def due(self) -> float:
        """From here on it beats everything."""
        own = self.turn.share.waiting_s
        return self.since - self.patient_for_s + (WAITING_S[self.turn.agent_class] if own is None else own)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a waiting turn stands now. For display."""

    waiting: Waiting
    position: int
    """1 is looked at first."""
    reason: str
    """For the owner: may name other agents."""
    told_reason: str
    """For the turn's own client: names nobody else."""

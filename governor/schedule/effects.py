"""The only way the turn scheduler acts: one protocol, so that deciding can be tested and replayed alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from governor.budget.ledger import Freed
from governor.types import TurnId


class Refusal(StrEnum):
    """Why a turn is refused; decides which error the client gets."""

    BUSY = "busy"
    """The agent's own queue or patience has run out: 429."""
    ENGINE_DOWN = "engine_down"
    """The engine is gone and nobody is starting it: 503."""
    HELD = "held"
    """The owner has paused its agent for longer than it may wait: 429."""
    TOO_LARGE = "too_large"
    """It is larger than everything the engine has: waiting is of no use."""


class Effects(Protocol):
    """What a decision does. Calls are synchronous, must not block, and must not call back into the scheduler. Every
    call brings its reason, with the numbers it was decided by, for people."""

    def grant(self, turn_id: TurnId, why: str) -> None:
        """The turn may run, or go on; its place is already booked."""
        ...

    def queue(self, turn_id: TurnId, reason: str) -> None:
        """The turn waits. Said once for each wait."""
        ...

    def pause(self, turn_id: TurnId, reason: str) -> None:
        """The running turn is to stop where it can be continued, and to say so (``TurnPaused``). It may end instead."""
        ...

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        """The turn is refused; asking again makes sense after ``retry_after_s``."""
        ...

    def take_back(self, freed: Freed) -> None:
        """A lease has been taken back of a turn that did not give it back itself. Nothing is left to do."""
        ...

"""The only way the turn scheduler acts: one protocol, so that deciding can be tested and replayed alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from governor.types import TurnId


class Refusal(StrEnum):
    """Why a turn is refused; decides which error the client gets."""

    BUSY = "busy"
    """The agent's own queue or patience has run out: 429."""
    ENGINE_DOWN = "engine_down"
    """The engine is gone and nobody is starting it: 503."""


class Effects(Protocol):
    """What a decision does. Calls are synchronous, must not block, and must not call back into the scheduler."""

    def grant(self, turn_id: TurnId) -> None:
        """The turn may run; its place is already booked."""
        ...

    def queue(self, turn_id: TurnId, reason: str) -> None:
        """The turn waits; ``reason`` is for people."""
        ...

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        """The turn is refused; asking again makes sense after ``retry_after_s``."""
        ...

"""Effects of the turn scheduler, recorded."""

from __future__ import annotations

from governor.schedule.effects import Refusal
from governor.types import TurnId


class RecordedEffects:
    """Implements :class:`governor.schedule.effects.Effects`; a second outcome of a turn is an error."""

    def __init__(self) -> None:
        self.granted: list[TurnId] = []
        self.queued: dict[TurnId, str] = {}
        self.rejected: dict[TurnId, tuple[Refusal, str, int]] = {}

    def grant(self, turn_id: TurnId) -> None:
        self._assert_open(turn_id)
        self.granted.append(turn_id)

    def queue(self, turn_id: TurnId, reason: str) -> None:
        self._assert_open(turn_id)
        if turn_id in self.queued:
            raise AssertionError(f"{turn_id} was queued twice")
        self.queued[turn_id] = reason

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        self._assert_open(turn_id)
        self.rejected[turn_id] = (refusal, reason, retry_after_s)

    def _assert_open(self, turn_id: TurnId) -> None:
        if turn_id in self.granted or turn_id in self.rejected:
            raise AssertionError(f"{turn_id} has its outcome already")

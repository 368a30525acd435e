"""Effects of the turn scheduler, recorded."""

from __future__ import annotations

from governor.budget.ledger import Freed
from governor.schedule.effects import Refusal
from governor.types import TurnId


class RecordedEffects:
    """Implements :class:`governor.schedule.effects.Effects`; a second outcome of a turn is an error."""

    def __init__(self) -> None:
        self.granted: list[TurnId] = []
        self.why: dict[TurnId, str] = {}
        self.queued: dict[TurnId, str] = {}
        self.paused: dict[TurnId, str] = {}
        self.rejected: dict[TurnId, tuple[Refusal, str, int]] = {}
        self.taken_back: list[Freed] = []
        self._running: set[TurnId] = set()
        self._waiting: set[TurnId] = set()

    def grant(self, turn_id: TurnId, why: str) -> None:
        self._assert_open(turn_id)
        if turn_id in self._running:
            raise AssertionError(f"{turn_id} was granted twice")
        self._waiting.discard(turn_id)
        self._running.add(turn_id)
        self.paused.pop(turn_id, None)
        self.granted.append(turn_id)
        self.why[turn_id] = why

    def queue(self, turn_id: TurnId, reason: str) -> None:
        self._assert_open(turn_id)
        if turn_id in self._waiting:
            raise AssertionError(f"{turn_id} was queued twice")
        if turn_id in self._running and turn_id not in self.paused:
            raise AssertionError(f"{turn_id} runs and was not asked to pause")
        self._running.discard(turn_id)
        self._waiting.add(turn_id)
        self.queued[turn_id] = reason

    def pause(self, turn_id: TurnId, reason: str) -> None:
        if turn_id not in self._running or turn_id in self.paused:
            raise AssertionError(f"{turn_id} does not run, or was asked to pause already")
        self.paused[turn_id] = reason

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        self._assert_open(turn_id)
        if turn_id in self._running:
            raise AssertionError(f"{turn_id} runs and is refused")
        self._waiting.discard(turn_id)
        self.rejected[turn_id] = (refusal, reason, retry_after_s)

    def take_back(self, freed: Freed) -> None:
        self.taken_back.append(freed)

    def _assert_open(self, turn_id: TurnId) -> None:
        if turn_id in self.rejected:
            raise AssertionError(f"{turn_id} was refused")

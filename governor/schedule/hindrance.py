"""Why a turn that waits does not run now: in words for people, and as the question whether it may. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from governor.schedule.books import AgentBook
from governor.schedule.events import EngineMode
from governor.schedule.floor import Floor
from governor.schedule.holds import Holds
from governor.schedule.queue import TurnQueue
from governor.schedule.standing import Standing, Waiting
from governor.schedule.window import ActiveWindow
from governor.types import NEVER_REFUSED, AgentName


class Hindrances:
    """Asks all who have a say. Changes nothing."""

    def __init__(
        self,
        floor: Floor,
        window: ActiveWindow,
        queue: TurnQueue,
        books: Mapping[AgentName, AgentBook],
        holds: Holds,
    ) -> None:
        self._floor = floor
        self._window = window
        self._queue = queue
        self._books = books
        self._holds = holds

    def words(self, now: float, waiting: Waiting) -> str | None:
        """Why a turn cannot run now, in words; ``None`` if it can."""
        turn, engine = waiting.turn, self._floor.engine
        held = self._holds.reason(waiting)
        if held is not None:
            return held
        if engine.mode is not EngineMode.READY:
            return "the engine is not ready yet"
        if self._floor.is_full():
            return f"all {engine.slots} engine slots are taken"
        own = self.own_limit(now, waiting)
        if own is not None:
            return own
        if not self._window.admits(turn.agent, now):
            return f"{self._window.members} agents share the cache now, as many as it carries"
        return self._floor.room.missing_for(turn)

    def may_run(self, now: float, waiting: Waiting) -> bool:
        """As soon as there is room. Whoever may not keeps nobody else waiting."""
        return self.own_limit(now, waiting) is None and self._window.admits(waiting.turn.agent, now)

    def own_limit(self, now: float, waiting: Waiting) -> str | None:
        """What keeps it back whatever room there is: the owner, or its agent's limits."""
        return self._holds.reason(waiting) or self._limit(now, waiting) or self._lets_pass(now, waiting)

    def held_back(self, now: float, waiting: Waiting, *, named: bool = True) -> str | None:
        """A turn beyond its budget that waits for room goes before all that are not as long over theirs."""
        if waiting.turn.claim is None:
            return None
        for other in self._queue.overdue():
            if other is waiting:
                return None
            if self.may_run(now, other) and self._floor.lacks(other.turn):
                who = other.turn.agent if named else "another turn"
                return f"{who} has waited {now - other.since:.0f} s for room and goes first"
        return None

    def standing(self, now: float, waiting: Waiting, position: int) -> Standing:
        """For display."""
        own = self.words(now, waiting)
        return Standing(
            waiting=waiting,
            position=position,
            reason=own or self.held_back(now, waiting) or "is next",
            told_reason=own or self.held_back(now, waiting, named=False) or "is next",
        )

    def _limit(self, now: float, waiting: Waiting) -> str | None:
        turn = waiting.turn
        limit = self._floor.room.over_ceiling(turn)
        if limit is not None or waiting.resumed:
            return limit
        limit = self._books[turn.agent].hindrance(now, turn)
        if limit is not None or turn.session is None or turn.kind in NEVER_REFUSED:
            return limit
        return "an earlier turn of this conversation runs" if self._floor.runs_session(turn.session) else None

    def _lets_pass(self, now: float, waiting: Waiting) -> str | None:
        """Those that came to wait before it. Of two one always has, so that nobody waits in a circle."""
        if not waiting.yields:
            return None
        for other in self._queue.all():
            if other.number >= waiting.number or self._holds.reason(other) is not None:
                continue
            if self._limit(now, other) is None and self._window.admits(other.turn.agent, now):
                return "the owner lets others go first"
        return None

"""One agent's own limits: how many of its turns run, wait, and were let in lately. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from governor.schedule.events import TurnArrived
from governor.types import NEVER_REFUSED, AgentName

_MINUTE_S = 60.0
_SOONEST_S = 5
"""Two waits of it carry Hermes through, which tries thrice."""


class AgentBook(msgspec.Struct):
    """Kept while the agent has turns, or grants that a rate still looks at."""

    running: int = 0
    queued: int = 0
    granted_at: deque[float] = msgspec.field(default_factory=deque)

    @property
    def idle(self) -> bool:
        return not self.running and not self.queued and not self.granted_at

    def note_grant(self, now: float) -> None:
        self._forget(now)
        self.granted_at.append(now)

    def rate_opens(self, now: float, turn: TurnArrived) -> float:
        """When the agent's rate lets one more in; ``now`` if it does already."""
        self._forget(now)
        limit = turn.limits.turns_per_minute
        if limit is None or turn.kind in NEVER_REFUSED or len(self.granted_at) < limit:
            return now
        return self.granted_at[len(self.granted_at) - limit] + _MINUTE_S

    def next_opening(self, now: float) -> float | None:
        """When a grant is next forgotten, which may let somebody in."""
        self._forget(now)
        return self.granted_at[0] + _MINUTE_S if self.granted_at else None

    def retry_after(self, now: float, turn: TurnArrived) -> int:
        """Seconds after which asking again makes sense."""
        return max(_SOONEST_S, math.ceil(self.rate_opens(now, turn) - now))

    def hindrance(self, now: float, turn: TurnArrived) -> str | None:
        """Which of the agent's own limits keeps the turn waiting, in words."""
        if turn.kind in NEVER_REFUSED:
            return None
        if self.running >= turn.limits.concurrency:
            return f"this agent runs {self.running} at once, its limit"
        if self.rate_opens(now, turn) > now:
            return f"this agent has had {turn.limits.turns_per_minute} turns in the last minute, its limit"
        return None

    def _forget(self, now: float) -> None:
        while self.granted_at and self.granted_at[0] + _MINUTE_S <= now:  # as :meth:`next_opening` tells it
            self.granted_at.popleft()


def check_books(books: Mapping[AgentName, AgentBook], runs: Counter[AgentName], waits: Counter[AgentName]) -> None:
    """Raises ``AssertionError`` where the books differ from the turns they are about."""
    for name in {*books, *runs, *waits}:
        book = books.get(name) or AgentBook()
        if (runs[name], waits[name]) != (book.running, book.queued):
            raise AssertionError(f"{name}: books {book.running}/{book.queued}, turns {runs[name]}/{waits[name]}")

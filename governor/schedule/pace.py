"""Whether the line of those that wait moves by itself. Pure.

Pausing an answer costs the return of its context, and is of use only where room does not come anyway: with eight places
and answers of ten seconds each, the first in line gets one every second or two, however long everybody has waited. So
nobody is paused before the first in line has not been let in for a while. Whoever was let in because somebody was
paused for it is no sign that the line moves.
"""

from __future__ import annotations

from governor.types import TurnId


class Pace:
    """Of one line."""

    def __init__(self) -> None:
        self._moved_at = float("-inf")
        self._helped: TurnId | None = None
        self._looked_for_s = 0.0

    def on_helped(self, turn_id: TurnId) -> None:
        """Somebody is paused for this one."""
        self._helped = turn_id

    def on_first_granted(self, turn_id: TurnId, now: float) -> None:
        """The first in line runs."""
        if turn_id != self._helped:
            self._moved_at = now

    def stands_still(self, now: float, yield_after_s: float) -> bool:
        """For so long at least."""
        self._looked_for_s = yield_after_s
        return now >= self._moved_at + yield_after_s

    def next_moment(self, now: float) -> float | None:
        """When what was asked last becomes true by time alone."""
        at = self._moved_at + self._looked_for_s
        return at if at > now else None

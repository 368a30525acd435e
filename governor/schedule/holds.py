"""Agents that the owner has paused. Pure."""

from __future__ import annotations

from governor.schedule.events import AgentHeld
from governor.schedule.standing import Waiting
from governor.types import AgentName


class Holds:
    """Who is held, and what that means for a turn that waits."""

    def __init__(self) -> None:
        self._held: dict[AgentName, AgentHeld] = {}

    def hold(self, event: AgentHeld) -> None:
        """From now on; of two the later one counts."""
        self._held[event.agent] = event

    def release(self, agent: AgentName) -> bool:
        """Whether it was held."""
        return self._held.pop(agent, None) is not None

    def reason(self, waiting: Waiting) -> str | None:
        """Why the turn is held, in words; ``None`` if it is not. An answer that has begun goes on, unless those are
        held, too."""
        held = self._held.get(waiting.turn.agent) if self._held else None
        if held is None or (waiting.resumed and not held.running):
            return None
        return held.reason

"""Whose next prompt the owner wants shorter, whatever its trigger."""

from __future__ import annotations

from governor.types import AgentName


class Requested:
    """One per governor, on its event loop. Forgotten at a restart."""

    def __init__(self) -> None:
        self._agents: set[AgentName] = set()

    def ask(self, agent: AgentName) -> bool:
        """False if it is asked for already."""
        if agent in self._agents:
            return False
        self._agents.add(agent)
        return True

    def take(self, agent: AgentName) -> bool:
        """Whether it was asked for; it counts once."""
        if agent not in self._agents:
            return False
        self._agents.discard(agent)
        return True

"""Which conversations are offered the recall tool. Pure; kept in memory, and bounded.

A tool list stands before all messages of a prompt, so a conversation keeps what it began with.
"""

from __future__ import annotations

from collections import OrderedDict

from governor.types import AgentName, SessionId

_MOST_SESSIONS = 4096


class RecallOffers:
    """Remembers what was decided. Synchronous; to be used from one thread."""

    def __init__(self, most_sessions: int = _MOST_SESSIONS) -> None:
        self._most = most_sessions
        self._decided: OrderedDict[tuple[AgentName, SessionId], bool] = OrderedDict()

    def is_offered(self, agent: AgentName, session: SessionId, *, wanted: bool) -> bool:
        """``wanted``: by the policy now, which counts where nothing was decided yet, or it is forgotten. Changes
        state."""
        key = (agent, session)
        decided = self._decided.setdefault(key, wanted)
        self._decided.move_to_end(key)
        while len(self._decided) > self._most:
            self._decided.popitem(last=False)
        return decided

    def __len__(self) -> int:
        return len(self._decided)

"""What it costs a paused answer to come back, learned from those that did. Pure.

Where L1 or L2 still has its context that is a second; where it must be computed again, minutes, and the time between
two pauses would be spent on nothing else (a mix of 32 agents without L2 and L3 computed each prompt 97 times). So a
quantum is at least :data:`RETURNS` times the return: a fifth of the time is the most that pausing costs.
"""

from __future__ import annotations

RETURNS = 4
GAIN = 0.2
"""Weight of the newest return."""


class Returns:
    """Seconds from the grant to the next token, by token of context."""

    def __init__(self) -> None:
        self._token_s: float | None = None

    def on_returned(self, seconds: float, tokens: int) -> None:
        """A paused answer goes on writing."""
        seen = seconds / max(1, tokens)
        self._token_s = seen if self._token_s is None else self._token_s + GAIN * (seen - self._token_s)

    def quantum_s(self, least_s: float, tokens: int) -> float:
        """How long an answer of so much context writes before it is paused; ``least_s``: its policy's."""
        return least_s if self._token_s is None else max(least_s, RETURNS * self._token_s * tokens)

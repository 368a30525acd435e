"""What whoever starts a suite may choose. ``None`` is the suite's own choice, which its page tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

Restart = Callable[[], Awaitable[None]]
"""Start the engine anew with the same L3; returns when it is ready."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of all suites; each takes what means something to it."""

    contexts: tuple[int, ...] | None = None
    """Tokens of a prompt."""
    output_tokens: int | None = None
    requests: tuple[int, ...] | None = None
    """How many at once."""
    minutes: float = 2.0
    """Of a soak."""
    restart: Restart | None = None
    pids: tuple[int, ...] = ()
    """Processes whose memory is watched."""

    def protocol(self) -> dict[str, str]:
        """For the result; two results with different ones are of different things."""
        told = {
            "contexts": ",".join(map(str, self.contexts)) if self.contexts else "",
            "output": str(self.output_tokens or ""),
            "requests": ",".join(map(str, self.requests)) if self.requests else "",
        }
        return {name: value for name, value in told.items() if value}

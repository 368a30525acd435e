"""The twin's clock over the wall's: faster by a factor, and it can stand still."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf


class ScaledClock:
    """Seconds of the twin since it was made. ``speed`` of them pass in one second of the wall."""

    def __init__(self, speed: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises ``ValueError`` for a speed that is not above 0, or endless."""
        if not 0 < speed < inf:
            raise ValueError(f"a speed must be above 0, not {speed:g}")
        self.speed = speed
        self._monotonic = monotonic
        self._since = monotonic()
        self._at = 0.0
        self._stopped = False

    @property
    def now(self) -> float:
        if self._stopped:
            return self._at
        return self._at + (self._monotonic() - self._since) * self.speed

    def wall_s(self, twin_s: float) -> float:
        """How long that takes on the wall."""
        return twin_s / self.speed

    def stop(self) -> None:
        """Stand still until :meth:`go`. May be repeated."""
        self._at = self.now
        self._stopped = True

    def go(self) -> None:
        """May be repeated."""
        if self._stopped:
            self._since = self._monotonic()
            self._stopped = False

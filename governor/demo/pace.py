"""Time at speed: an event loop and a clock in which the twin's seconds pass.

Policies, waits and the twin then speak of the same seconds, so the governor's code runs as it is: a quantum of 15 s is
15 s of the twin's, and a quarter of one on the wall at speed 60.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from selectors import SelectorKey

import msgspec


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How the twin's time runs. The system's monotonic clock is one for all processes, so a pace can be sent to
    another one."""

    speed: float
    """Seconds of the twin in one of the wall."""
    began_monotonic_s: float
    """On the wall."""
    began_wall_s: float
    """Unix time in seconds."""

    @classmethod
    def now_at(cls, speed: float) -> Pace:
        """Begins now."""
        return cls(speed=speed, began_monotonic_s=time.monotonic(), began_wall_s=time.time())

    def monotonic(self) -> float:
        """See :class:`governor.clock.Clock`; the time of a :class:`PacedLoop` at the same speed."""
        return time.monotonic() * self.speed

    def wall(self) -> float:
        """See :class:`governor.clock.Clock`."""
        return self.began_wall_s + (time.monotonic() - self.began_monotonic_s) * self.speed


class _PacedSelector(selectors.DefaultSelector):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._speed)


class PacedLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps and time-outs are in the twin's seconds."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        super().__init__(_PacedSelector(speed))

    def time(self) -> float:
        return super().time() * self._speed

"""The clock port. Code that decides receives times; only wiring builds a real clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two times, both in seconds. Neither call blocks or raises."""

    def monotonic(self) -> float:
        """For durations and deadlines."""
        ...

    def wall(self) -> float:
        """Unix time, for what a person reads."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """A clock that a test or a simulation moves by hand."""

    def __init__(self, start: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall - start

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset

    def advance(self, seconds: float) -> None:
        self._now += seconds

"""What share of the tokens that running requests may still write admission reckons with.

``scheduler_components/new_token_ratio_tracker.py`` with the defaults of ``environ.py:646-650``.
"""

from __future__ import annotations

from collections.abc import Sequence

from serve.twin.engine_job import Job
from serve.twin.tiers import RETRACT_STEPS

INITIAL_RATIO = 0.7
"""``SGLANG_INIT_NEW_TOKEN_RATIO``."""
LEAST_FACTOR = 0.14
"""``SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR``."""
DECAY_STEPS = 600
"""``SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS``."""


class NewTokenRatio:
    """Falls with each decode step, rises when the guess was wrong."""

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(INITIAL_RATIO * conservativeness, 1.0)
        self.least = min(self.initial * LEAST_FACTOR, 1.0)
        self._decay = (self.initial - self.least) / DECAY_STEPS
        self.reset()

    @property
    def current(self) -> float:
        if self._start <= self.least:
            return self.least if self._steps else self._start
        return max(self._start - self._decay * self._steps, self.least)

    @property
    def is_falling(self) -> bool:
        return self.current > self.least

    def decay(self, steps: int) -> None:
        self._steps += steps

    def reset(self) -> None:
        """The engine is idle."""
        self._start, self._steps = self.initial, 0

    def on_retracted(self, kept: Sequence[Job]) -> None:
        """``estimate_new_token_ratio_after_retract`` of those that go on."""
        written = sum(each.written for each in kept) + RETRACT_STEPS * len(kept)
        self._start, self._steps = min(1.0, written / (sum(each.limit_tokens for each in kept) + 1)), 0

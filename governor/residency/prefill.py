"""How fast the engine computes prompts, from what turns took: the price of a lost prefix in seconds. Pure.

The figure is what turns met, with whatever ran beside them, so it moves with the engine's load.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

LEAST_TOKENS: Final = 256
"""A shorter prefill tells more of the engine's overhead than of its speed."""
_KEPT: Final = 32
_ENOUGH: Final = 3
"""Fewer samples do not show how much they differ."""
_MARGIN_OF_FEW: Final = 0.5


class PrefillSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens computed a second."""

    tokens_per_s: float
    low: float
    high: float
    """Between these two lie the middle four fifths of what was seen; half the figure off, of fewer than three."""
    samples: int

    def price(self, tokens: int) -> Price:
        """Of computing so many."""
        seconds = tokens / self.tokens_per_s
        margin = max(tokens / self.low - seconds, seconds - tokens / self.high)
        return Price(seconds=round(seconds, 3), margin_s=round(margin, 3))


class Price(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    margin_s: float
    """The true figure is likely no further off."""


class PrefillRate:
    """The last turns that computed enough to tell."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def note(self, tokens: int, seconds: float) -> None:
        """A turn has computed so many tokens of its prompt between its grant and its first token."""
        if tokens >= LEAST_TOKENS and seconds > 0:
            self._samples.append((tokens, seconds))

    def clear(self) -> None:
        """It is another engine."""
        self._samples.clear()

    @property
    def speed(self) -> PrefillSpeed | None:
        """``None``: no turn has told."""
        if not self._samples:
            return None
        whole = sum(tokens for tokens, _ in self._samples) / sum(seconds for _, seconds in self._samples)
        rates = sorted(tokens / seconds for tokens, seconds in self._samples)
        low, high = whole * (1 - _MARGIN_OF_FEW), whole * (1 + _MARGIN_OF_FEW)
        if len(rates) >= _ENOUGH:
            cut = len(rates) // 10
            low, high = min(whole, rates[cut]), max(whole, rates[-1 - cut])
        return PrefillSpeed(tokens_per_s=whole, low=low, high=high, samples=len(rates))

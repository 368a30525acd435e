"""How long an agent's tools take: from the end of a turn to the next one of its conversation, by agent and tool. Pure.

Each pair has a histogram of the logarithm of the time: tool times run from milliseconds to hours and have long tails,
so that a mean says nothing and a quantile within some 15 % is all there is to know. Every observation weighs ``KEPT``
of the one after it; some fifty count. A pair that has been seen too seldom is answered for by the tool in all
agents' hands. Nothing is written to disk: after a restart a few turns are enough.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import msgspec

from governor.types import AgentName

SHORTEST_S, LONGEST_S = 0.05, 6 * 3600.0
STEPS = 5
"""Bins to a doubling."""
KEPT = 0.98
ENOUGH = 5
"""Observations before a pair speaks for itself."""
MOST_PAIRS = 512
LONGEST_NAME = 64

_BINS = math.ceil(math.log2(LONGEST_S / SHORTEST_S) * STEPS) + 1


class Returns(msgspec.Struct, frozen=True):
    """A distribution of times to return; ``weights`` by bin, the last for those who never came back."""

    weights: tuple[float, ...]

    def quantile(self, share: float, *, beyond_s: float = 0.0) -> float:
        """Seconds since the turn's end within which ``share`` of those have returned that had not by ``beyond_s``.
        ``inf`` where so many never do. Never falls as ``share`` or ``beyond_s`` rises."""
        first = _bin(beyond_s) if beyond_s > SHORTEST_S else 0
        left = sum(self.weights[first:])
        if left <= 0:
            return math.inf
        wanted, seen = share * left, 0.0
        for number in range(first, _BINS):
            seen += self.weights[number]
            if seen >= wanted > 0 or (seen > 0 and wanted <= 0):
                return max(beyond_s, _upper(number))
        return math.inf

    def chance(self, after_s: float, within_s: float) -> float:
        """That one who has not returned ``after_s`` after the turn's end does so in the next ``within_s``."""
        first, last = _bin(after_s), _bin(after_s + within_s)
        left = sum(self.weights[first:])
        return sum(self.weights[first : last + 1]) / left if left > 0 else 0.0


class ToolClock:
    """Learns from returns. Bounded: the pairs that were asked for or told of last are kept. The tool without a name is
    none: somebody reads the answer and thinks, or a timer runs."""

    def __init__(self) -> None:
        self._weights: OrderedDict[tuple[AgentName | None, str], _Histogram] = OrderedDict()

    def __len__(self) -> int:
        return len(self._weights)

    def on_return(self, agent: AgentName, tool: str, seconds: float) -> None:
        """A conversation has gone on so long after its last turn had ended."""
        self._note(agent, tool, _bin(seconds))

    def on_given_up(self, agent: AgentName, tool: str) -> None:
        """It has not, and nobody waits for it any more."""
        self._note(agent, tool, _BINS)

    def expected(self, agent: AgentName, tool: str) -> Returns | None:
        """``None`` while nothing like it has been seen often enough."""
        for key in ((agent, tool[:LONGEST_NAME]), (None, tool[:LONGEST_NAME])):
            histogram = self._weights.get(key)
            if histogram is not None and histogram.seen >= ENOUGH:
                self._weights.move_to_end(key)
                return Returns(tuple(histogram.weights))
        return None

    def _note(self, agent: AgentName, tool: str, number: int) -> None:
        for key in ((None, tool[:LONGEST_NAME]), (agent, tool[:LONGEST_NAME])):
            histogram = self._weights.setdefault(key, _Histogram())
            self._weights.move_to_end(key)
            histogram.add(number)
        while len(self._weights) > MOST_PAIRS:
            self._weights.popitem(last=False)


class _Histogram:
    __slots__ = ("seen", "weights")

    def __init__(self) -> None:
        self.weights = [0.0] * (_BINS + 1)
        self.seen = 0

    def add(self, number: int) -> None:
        self.weights = [weight * KEPT for weight in self.weights]
        self.weights[number] += 1.0
        self.seen += 1


def _bin(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(_BINS - 1, math.ceil(math.log2(seconds / SHORTEST_S) * STEPS - 1e-9))


def _upper(number: int) -> float:
    """Longest time of a bin."""
    return SHORTEST_S * float(2 ** (number / STEPS))

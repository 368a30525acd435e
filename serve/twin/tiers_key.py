"""Token sequences as runs, so that comparing two contexts of 200,000 tokens costs their handful of runs.

Lowest layer of the tiers model. A *source* is an endless stream of tokens no other source has; a run is a piece of one.
Who builds keys sees to it that equal tokens have equal runs: a conversation takes a new source for what nobody has
said before and reuses the runs of what was said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from itertools import accumulate

Run = tuple[int, int, int]
"""Source, first offset, offset after the last."""


class Key:
    """A sequence of tokens. Frozen; neighbouring runs that continue each other are one."""

    __slots__ = ("_ends", "runs")

    runs: tuple[Run, ...]
    _ends: tuple[int, ...]

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        joined: list[Run] = []
        for source, start, stop in runs:
            if stop <= start:
                continue
            if joined and joined[-1][0] == source and joined[-1][2] == start:
                joined[-1] = (source, joined[-1][1], stop)
            else:
                joined.append((source, start, stop))
        self._set(joined)

    def _set(self, joined: list[Run]) -> None:
        self.runs = tuple(joined)
        self._ends = tuple(accumulate([stop - start for _, start, stop in joined]))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __add__(self, other: Key) -> Key:
        return Key(self.runs + other.runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"Key({list(self.runs)})"

    def cut(self, start: int, stop: int) -> Key:
        """The tokens of ``[start, stop)``; beyond the end there are none."""
        stop = min(stop, len(self))
        if start >= stop:
            return Key()
        if start == 0 and stop == len(self):
            return self
        part = Key.__new__(Key)
        part._set(self._runs_of(start, stop))  # a part of joined runs is joined
        return part

    def _runs_of(self, start: int, stop: int) -> list[Run]:
        ends = self._ends
        first, last = bisect_right(ends, start), bisect_right(ends, stop - 1)
        runs = list(self.runs[first : last + 1])
        source, begin, end = runs[-1]
        runs[-1] = (source, begin, end - (ends[last] - stop))
        source, begin, end = runs[0]
        runs[0] = (source, begin + start - (ends[first - 1] if first else 0), end)
        return runs

    def page(self, start: int, page_tokens: int) -> Hashable:
        """What one page of tokens is told by. The page must lie within the key."""
        ends = self._ends
        first = bisect_right(ends, start)
        if start + page_tokens <= ends[first]:
            source, begin, _ = self.runs[first]
            return source, begin + start - (ends[first - 1] if first else 0)
        return tuple(self._runs_of(start, start + page_tokens))

    def common(self, other: Key, at: int) -> int:
        """How many of this key's first tokens stand in ``other`` from ``at`` on."""
        if at >= len(other):
            return 0
        index = bisect_right(other._ends, at)
        source, begin, stop = other.runs[index]
        begin += at - (other._ends[index - 1] if index else 0)
        same = 0
        for own_source, own_begin, own_stop in self.runs:
            while own_begin < own_stop:
                if own_source != source or own_begin != begin:
                    return same
                step = min(own_stop - own_begin, stop - begin)
                same += step
                own_begin += step  # noqa: PLW2901
                begin += step
                if begin == stop:
                    index += 1
                    if index == len(other.runs):
                        return same
                    source, begin, stop = other.runs[index]
        return same

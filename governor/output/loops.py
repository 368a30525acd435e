"""Finds an answer that repeats itself without end. Pure.

A degenerate loop is text whose last ``chars`` characters have one short period: the same piece again and again, at
least :data:`REPEATS` times. Tables, listings and counting are not that: something in each line differs.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from governor.visible import visible

REPEATS = 8
_PROBE = 48
"""Last characters that are looked for further back; each place where they stand may be one period away."""
_CANDIDATES = 16
_SHOWN_CHARS = 60


class Loop(msgspec.Struct, frozen=True):
    """What is repeated."""

    piece: str
    times: int
    """In the characters that were looked at."""

    @property
    def flag(self) -> str:
        """For the turn's row."""
        return f"loop: '{visible(self.piece, _SHOWN_CHARS)}' x {self.times}"


class LoopDetector:
    """Fed an answer as it comes. ``chars``: how much must repeat; 0 switches it off.

    Looks once for each eighth of ``chars``, at what str.rfind and a comparison of that length cost.
    """

    def __init__(self, chars: int) -> None:
        self._chars = chars
        self._tail = ""
        self._unseen: list[str] = []
        self._unseen_chars = 0

    def feed(self, text: str) -> Loop | None:
        """The loop, as soon as ``text`` completes one."""
        if not self._chars:
            return None
        self._unseen.append(text)
        self._unseen_chars += len(text)
        if self._unseen_chars * REPEATS < self._chars:
            return None
        self._tail = (self._tail + "".join(self._unseen))[-self._chars :]
        self._unseen, self._unseen_chars = [], 0
        if len(self._tail) < self._chars:
            return None
        period = _period(self._tail, self._chars // REPEATS)
        return None if period is None else Loop(self._tail[-period:], self._chars // period)


def _period(text: str, longest: int) -> int | None:
    """A period of ``text`` of at most ``longest`` characters."""
    probe, end = text[-_PROBE:], len(text) - 1
    for _ in range(_CANDIDATES):
        found = text.rfind(probe, max(0, len(text) - _PROBE - longest), end)
        if found < 0:
            return None
        period = len(text) - _PROBE - found
        if text.startswith(text[period:]):
            return period
        end = found + _PROBE - 1
    return None


class AnswerLoops:
    """The parts of one answer, each looked at by itself: a call's arguments do not go on where its text ended."""

    def __init__(self, chars: int) -> None:
        self._chars = chars
        self._detectors: dict[Hashable, LoopDetector] = {}

    def feed(self, part: Hashable, text: str) -> Loop | None:
        """See :meth:`LoopDetector.feed`; ``part`` names what ``text`` belongs to. All of a long one is looked at."""
        detector = self._detectors.get(part)
        if detector is None:
            detector = self._detectors[part] = LoopDetector(self._chars)
        step = max(1, self._chars // REPEATS)
        if len(text) <= step:
            return detector.feed(text)
        pieces = (text[at : at + step] for at in range(0, len(text), step))
        return next((loop for loop in map(detector.feed, pieces) if loop is not None), None)

"""Asks the engine where a stopped answer is to be cut: its tokens' texts, held against what was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from governor.wire.seam import Cut, Said, cut_at, shown_in

_WINDOW = 48
"""Tokens looked at from the end, at first: few are written between the abort and its effect."""
_LONGEST_CHARACTER = 4
"""Tokens."""


class Detokenizer(Protocol):
    """See :class:`serve.engine.Continuation`."""

    async def texts(self, ids: Sequence[Sequence[int]]) -> list[str]: ...


class Seam(msgspec.Struct, frozen=True):
    """Where the answer goes on."""

    cut: Cut
    proven: bool
    """All that was shown was found in the text of the tokens."""


async def find_seam(engine: Detokenizer, ids: Sequence[int], said: Sequence[Said]) -> Seam:
    """Raises :class:`~governor.errors.UpstreamError` when the engine does not tell the texts.

    Where nothing that was shown is found, all tokens are kept: nothing is then shown twice.
    """
    if not said or not ids:
        return Seam(Cut(0), proven=not said)
    (written,) = await engine.texts([ids])
    shown = shown_in(written, said)
    if shown is None:
        return Seam(Cut(len(ids)), proven=False)
    cut = await _cut_near(engine, ids, len(ids), shown.chars)
    if cut is None:
        near = await _bisected(engine, ids, shown.chars)
        cut = await _cut_near(engine, ids, min(len(ids), near + _LONGEST_CHARACTER), shown.chars)
    return Seam(Cut(len(ids)), proven=False) if cut is None else Seam(cut, shown.proven)


async def _cut_near(engine: Detokenizer, ids: Sequence[int], last: int, chars: int) -> Cut | None:
    """The cut, if it is among the tokens just before ``last``."""
    first = max(0, last - _WINDOW)
    start = max(0, first - _WINDOW)  # a token may decode in another way without those before it
    whole, *ends = await engine.texts([ids[:last], *(ids[start:stop] for stop in range(first, last + 1))])
    return cut_at(chars, ends, first, len(whole) - len(ends[-1]))


async def _bisected(engine: Detokenizer, ids: Sequence[int], chars: int) -> int:
    """A number of tokens that show so many characters, at most :data:`_WINDOW` too high."""
    low, high = 0, len(ids)
    while high - low > _WINDOW // 2:
        middle = (low + high) // 2
        (text,) = await engine.texts([ids[:middle]])
        low, high = (low, middle) if len(text) >= chars else (middle, high)
    return high

"""Bars of a width: how many cells each part gets, and what stands in them. Pure.

A part that is there is seen: it gets a cell as long as there are any. Without colours, glyphs or labels and the lines
before them tell parts apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tui.cells import Bar, Tone, padded

_MARK, _EDGE = "│", "▏"
_LEAST_LABEL = 4
"""Cells from which on a label says something."""


class Piece(msgspec.Struct, frozen=True):
    """Text in one look."""

    text: str
    tone: Tone
    area: bool = False
    """The tone is the ground it stands on."""


def cells_of(amounts: Sequence[float], whole: float, width: int) -> list[int]:
    """Cells for each amount, to scale, by largest remainder: at most ``width`` in all."""
    scale = width / whole if whole > 0 else 0.0
    exact = [max(0.0, amount) * scale for amount in amounts]
    cells = [max(1, int(wanted)) if wanted > 0 else 0 for wanted in exact]
    total = min(width, round(sum(exact)))
    by_remainder = sorted(range(len(exact)), key=lambda index: cells[index] - exact[index])
    for index in by_remainder:
        if sum(cells) >= total:
            break
        if exact[index] > cells[index]:
            cells[index] += 1
    while sum(cells) > width:
        cells[max(range(len(cells)), key=cells.__getitem__)] -= 1
    return cells


def drawn(bar: Bar, width: int) -> list[Piece]:
    """The bar in exactly ``width`` cells."""
    amounts = [part.amount for part in bar.parts]
    whole = max(bar.whole or 0.0, sum(amount for amount in amounts if amount > 0))
    cells = cells_of(amounts, whole, width)
    pieces = [
        _labelled(part.label, part.tone, count) if bar.labelled else Piece(part.glyph * count, part.tone)
        for part, count in zip(bar.parts, cells, strict=True)
        if count
    ]
    pieces.append(Piece(bar.rest * (width - sum(cells)), Tone.DIM))
    if bar.mark is not None and 0 <= bar.mark <= whole and width:
        return _marked(pieces, min(width - 1, int(bar.mark / whole * width)) if whole else 0)
    return pieces


def _labelled(label: str, tone: Tone, count: int) -> Piece:
    text = padded(label, count - 1) if count >= _LEAST_LABEL else " " * (count - 1)
    return Piece(_EDGE + text, tone, area=True)


def _marked(pieces: Sequence[Piece], at: int) -> list[Piece]:
    """With a line in place of the character ``at``. Glyphs are one cell wide here."""
    line, begin = list[Piece](), 0
    for piece in pieces:
        place = at - begin
        begin += len(piece.text)
        if 0 <= place < len(piece.text):
            line.append(Piece(piece.text[:place], piece.tone, piece.area))
            line.append(Piece(_MARK, Tone.STRONG))
            line.append(Piece(piece.text[place + 1 :], piece.tone, piece.area))
        else:
            line.append(piece)
    return line

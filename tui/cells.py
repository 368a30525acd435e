"""Cells, columns and how wide they are: what a widget draws, without a widget.

Text in a cell is drawn as it is, never parsed; what does not print has been spelled out before.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from rich.cells import cell_len, set_cell_size

from governor.visible import visible

_LONGEST_CELL = 400
"""Characters. No terminal shows more on a line."""

WIDE = 110
"""From this many terminal cells on there are more columns, and they stand two apart."""
ROOMY = 150
"""From this many on there is room for everything."""


class Tone(StrEnum):
    """What a cell's text means to its reader. A tone only stresses: the words, or the glyphs, say it, too."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    L1 = "l1"
    L2 = "l2"
    L3 = "l3"
    NEW = "new"
    """Computed, or to be computed again."""
    HUE0 = "hue0"
    HUE1 = "hue1"
    HUE2 = "hue2"
    HUE3 = "hue3"
    HUE4 = "hue4"
    HUE5 = "hue5"
    HUE6 = "hue6"
    HUE7 = "hue7"


HUES = (Tone.HUE0, Tone.HUE1, Tone.HUE2, Tone.HUE3, Tone.HUE4, Tone.HUE5, Tone.HUE6, Tone.HUE7)
"""Tell agents, and kinds of content, apart."""


class Part(msgspec.Struct, frozen=True):
    """A piece of a bar. A label is drawn onto it where it fits; without one the glyph tells parts apart."""

    amount: float
    tone: Tone
    glyph: str = "█"
    label: str = ""


class Bar(msgspec.Struct, frozen=True):
    """Parts side by side, to scale; see :mod:`tui.bars`."""

    parts: tuple[Part, ...]
    whole: float | None = None
    """What the full width stands for; ``None``: the sum of the parts."""
    labelled: bool = False
    """Parts are areas that carry their labels."""
    mark: float | None = None
    """Drawn as a line at this amount."""
    rest: str = " "
    """What the whole has beside the parts is drawn with."""


class Cell(msgspec.Struct, frozen=True):
    text: str
    tone: Tone = Tone.PLAIN
    bar: Bar | None = None
    """Drawn in place of the text, as wide as the column."""


Row = tuple[Cell, ...]
"""A table's row has a cell for each column, or fewer: then its last one takes the rest of the line."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    right: bool = False
    """Figures stand at the right."""
    grows: bool = False
    """Takes the room that is left, and gives way first where there is too little."""
    least: int = 4
    """Cells that a growing column keeps."""
    most: int = 14
    """Cells that a column which does not grow may take, and a bar."""
    from_width: int = 0
    """Shown only in so many terminal cells, or more."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    title: str = ""
    notes: tuple[Cell, ...] = ()
    """Beside the title: what the glyphs mean, or a sum."""
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    empty: str = ""
    """Said in place of rows."""
    keys: tuple[str, ...] = ()
    """Names each row, as many as there are rows; none: rows cannot be chosen."""
    headed: bool = True
    """Columns show their titles."""


NO_TABLE = Table()


def external(text: str, tone: Tone = Tone.PLAIN) -> Cell:
    """Text of strangers: on one line, of bounded length, with everything that does not print spelled out."""
    return Cell(visible(text, _LONGEST_CELL), tone)


def bar_cell(*parts: Part, whole: float | None = None, mark: float | None = None, rest: str = " ") -> Cell:
    return Cell("", bar=Bar(parts, whole=whole, mark=mark, rest=rest))


FREE = "░"
"""Room that is left, in a gauge."""


def fit(text: str, width: int) -> str:
    """``text`` in at most ``width`` terminal cells, with an ellipsis where it was cut."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def padded(text: str, width: int, *, right: bool = False) -> str:
    """``text`` in exactly ``width`` terminal cells."""
    short = fit(text, width)
    blank = " " * (width - cell_len(short))
    return blank + short if right else short + blank


def gap_of(total: int) -> int:
    """Cells between two columns."""
    return 2 if total >= WIDE else 1


def column_widths(table: Table, total: int) -> dict[int, int]:
    """Cells for each column that is shown, by its index. Columns take what they need; if that is too much, the growing
    ones share what is left, the small needs first."""
    columns = table.columns
    widths = {index: _need(table, index) for index, column in enumerate(columns) if total >= column.from_width}
    needs = dict(widths)
    growing = sorted((index for index in widths if columns[index].grows), key=needs.__getitem__)
    free = total - gap_of(total) * (len(widths) - 1) - sum(needs[index] for index in widths if index not in growing)
    for position, index in enumerate(growing):
        share = max(free // (len(growing) - position), columns[index].least)
        widths[index] = min(needs[index], share)
        free -= widths[index]
    return widths


def _need(table: Table, index: int) -> int:
    column, columns = table.columns[index], len(table.columns)
    own = [row[index] for row in table.rows if len(row) == columns or index < len(row) - 1]
    need = max([cell_len(column.title) if table.headed else 0, *(cell_len(cell.text) for cell in own)])
    if any(cell.bar is not None for cell in own):
        return max(need, column.most)
    return need if column.grows else min(need, column.most)


def joined(cells: Sequence[Cell], width: int, gap: int = 2) -> list[Cell]:
    """Cells on one line, the last ones cut or left out where the room ends."""
    line, room = list[Cell](), width
    for cell in cells:
        if room <= 0 or not cell.text:
            continue
        text = fit(cell.text, room)
        line.append(Cell(text, cell.tone))
        room -= cell_len(text) + gap
    return line

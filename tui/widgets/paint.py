"""From cells to terminal segments: text and a style, with no markup that a text could break out of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from tui.bars import drawn
from tui.cells import Cell, Column, Tone, gap_of, joined, padded
from tui.look import AREAS, CHOSEN, TITLE, TONES

_logger = logging.getLogger(__name__)


def table_line(
    widget: Widget,
    columns: Sequence[Column],
    cells: Sequence[Cell],
    widths: Mapping[int, int],
    total: int,
    chosen: bool = False,
) -> Strip:
    """One row of a table, ``total`` cells wide; ``widths`` is from :func:`~tui.cells.column_widths`. The first cell of
    a chosen row is stressed."""
    room, gap = total, gap_of(total)
    segments = list[Segment]()
    for index, width in widths.items():
        if index >= len(cells) or room <= 0:
            break
        takes_the_rest = index == len(cells) - 1 < len(columns) - 1
        wide = min(room, room if takes_the_rest else width)
        cell = cells[index]
        if cell.bar is not None:
            segments += _bar(cell, wide)
        else:
            stressed = chosen and index == 0
            text = padded(cell.text, wide, right=columns[index].right)
            segments.append(Segment(text, TONES[cell.tone] + CHOSEN if stressed else TONES[cell.tone]))
        segments.append(Segment(" " * gap))
        room -= wide + gap
    return _line(widget, segments, total)


def flowing_line(widget: Widget, cells: Sequence[Cell], total: int) -> Strip:
    """Cells side by side, the last one cut at the edge."""
    return _line(widget, list(flowing(cells, total)), total)


def flowing(cells: Sequence[Cell], width: int) -> Iterator[Segment]:
    for cell in joined(cells, width):
        yield Segment(cell.text + "  ", TONES[cell.tone])


def rule(widget: Widget, title: str, notes: Sequence[Cell], total: int, *, heavy: bool) -> Strip:
    """A line with a title in it and notes at its right end, which give way where there is too little room."""
    line = "━" if heavy else "─"
    begin, plain = f"{line} {title} ", TONES[Tone.DIM]
    shown = joined(notes, max(0, total - cell_len(begin) - 4))
    if len(shown) < len(notes) or any(cell.text.endswith("…") for cell in shown):
        shown = shown[:-1] if shown and shown[-1].text.endswith("…") else shown
    taken = sum(cell_len(cell.text) + 2 for cell in shown)
    between = max(0, total - cell_len(begin) - taken - (1 if shown else 0))
    segments = [
        Segment(line, plain),
        Segment(f" {title} ", TITLE),
        Segment(line * between, plain),
    ]
    if shown:
        segments.append(Segment(" ", plain))
        segments += flowing(shown, taken)
    return _line(widget, segments, total)


def guarded(widget: Widget, draw: Callable[[], Strip]) -> Strip:
    """What ``draw`` makes; where it fails, a line that says so: an error in one widget does not end the app."""
    try:
        return draw()
    except Exception:
        _logger.exception("%s cannot be drawn", type(widget).__name__)
        return Strip([Segment("this line cannot be drawn: a bug of ours, see logs/top.log")])


def _bar(cell: Cell, width: int) -> Iterator[Segment]:
    if cell.bar is not None:
        for piece in drawn(cell.bar, width):
            yield Segment(piece.text, (AREAS if piece.area else TONES)[piece.tone])


def _line(widget: Widget, segments: list[Segment], total: int) -> Strip:
    """Over the widget's own style; neighbours of one style are sent as one."""
    strip = Strip(segments).simplify().adjust_cell_length(total)
    return strip.apply_style(widget.rich_style)

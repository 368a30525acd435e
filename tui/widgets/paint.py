"""From cells to terminal segments: text and a style, with no markup that a text could break out of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from tui.cells import Cell, Column, Tone, gap_of, joined, padded

TONE_CLASSES = {f"tone--{tone}" for tone in Tone}
"""Component classes of a widget that draws cells; their styles stand in the app's style sheet."""


def table_line(
    widget: Widget, columns: Sequence[Column], cells: Sequence[Cell], widths: Mapping[int, int], total: int
) -> Strip:
    """One row of a table, ``total`` cells wide; ``widths`` is from :func:`~tui.cells.column_widths`."""
    room, gap = total, gap_of(total)
    segments = list[Segment]()
    for index, width in widths.items():
        if index >= len(cells):
            break
        takes_the_rest = index == len(cells) - 1 < len(columns) - 1
        text = padded(cells[index].text, room if takes_the_rest else width, right=columns[index].right)
        segments.append(Segment(text + " " * gap, _style(widget, cells[index].tone)))
        room -= width + gap
    return _line(widget, segments, total)


def flowing_line(widget: Widget, cells: Sequence[Cell], total: int) -> Strip:
    """Cells side by side, the last one cut at the edge."""
    segments = [Segment(cell.text + "  ", _style(widget, cell.tone)) for cell in joined(cells, total)]
    return _line(widget, segments, total)


def _line(widget: Widget, segments: list[Segment], total: int) -> Strip:
    """Neighbours of one style are sent as one."""
    return Strip(segments).simplify().adjust_cell_length(total, widget.rich_style)


def _style(widget: Widget, tone: Tone) -> Style:
    return widget.get_component_rich_style(f"tone--{tone}")

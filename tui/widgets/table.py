"""A table of cells that scrolls under its header. Only the lines in view are drawn, so a long one costs no more."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.cells import Cell, Table, Tone, column_widths
from tui.widgets.paint import TONE_CLASSES, flowing_line, table_line

_NOTHING = Table(columns=(), rows=(), empty="")


class CellTable(ScrollView, can_focus=True):
    """Shows one :class:`~tui.cells.Table`; line 0 is its header and stays."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES | {"table--header"}

    def __init__(self, title: str, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.border_title = title
        self._title = title
        self._table = _NOTHING
        self._widths: dict[int, int] = {}

    @property
    def table(self) -> Table:
        return self._table

    def show(self, table: Table) -> None:
        """Draw this instead. The place scrolled to stays; lines that are as before are not sent again."""
        if table == self._table:
            return
        before, widths_before = self._table, self._widths
        self._table = table
        self._measure()
        if len(before.rows) != len(table.rows):
            self.border_title = f"{self._title} ({len(table.rows)})" if table.rows else self._title
            self.virtual_size = self._content_size()
            self.refresh(layout=True)
        elif widths_before != self._widths or before.empty != table.empty:
            self.refresh()
        else:
            for index, (old, new) in enumerate(zip(before.rows, table.rows, strict=True)):
                if old != new:
                    self.refresh_line(1 + index)

    def on_mount(self) -> None:
        self.virtual_size = self._content_size()

    def on_resize(self, event: events.Resize) -> None:
        self._measure()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        table, total = self._table, self.scrollable_content_region.width
        if not table.rows:
            return flowing_line(self, (Cell(table.empty, Tone.DIM),) if y == 0 else (), total)
        if y == 0:
            titles = tuple(Cell(column.title) for column in table.columns)
            header = table_line(self, table.columns, titles, self._widths, total)
            return header.apply_style(self.get_component_rich_style("table--header", partial=True))
        index = y - 1 + self.scroll_offset.y
        if index >= len(table.rows):
            return Strip.blank(total, self.rich_style)
        return table_line(self, table.columns, table.rows[index], self._widths, total)

    def _content_size(self) -> Size:
        """A header and the rows, or one line that says why there are none."""
        rows = len(self._table.rows)
        return Size(0, 1 + rows if rows else 1)

    def _measure(self) -> None:
        self._widths = column_widths(self._table, self.scrollable_content_region.width)

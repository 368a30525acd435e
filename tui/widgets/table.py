"""A table of cells that scrolls under its title. Only the lines in view are drawn, so a long one costs no more."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.cells import NO_TABLE, Cell, Table, Tone, column_widths
from tui.look import HEADER, TONES
from tui.widgets.paint import flowing_line, guarded, rule, table_line

_MARGIN = 2
"""Cells at the left in which the chosen row is marked."""


class CellTable(ScrollView, can_focus=True):
    """Shows one :class:`~tui.cells.Table`; its title and header stay. Where rows have keys one of them is chosen, and
    stays so while rows come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    class Opened(Message):
        """Enter, or a second click, on a row."""

        def __init__(self, table: CellTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> CellTable:
            return self.table

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._table = NO_TABLE
        self._widths: dict[int, int] = {}
        self._chosen = ""

    @property
    def table(self) -> Table:
        return self._table

    @property
    def chosen(self) -> str | None:
        """Key of the chosen row; ``None`` where there is none to choose."""
        return self._chosen if self._chosen and self._chosen in self._table.keys else None

    def show(self, table: Table) -> None:
        """Draw this instead. The place scrolled to stays; lines that are as before are not sent again."""
        if table == self._table:
            return
        before, widths_before = self._table, self._widths
        self._table = table
        if table.keys and self._chosen not in table.keys:
            self._chosen = self._neighbour(before)
        self._measure()
        if len(before.rows) != len(table.rows) or self._top(before) != self._top(table):
            self.virtual_size = self._content_size()
            self.refresh(layout=True)
        elif widths_before != self._widths or before.empty != table.empty or before.keys != table.keys:
            self.refresh()
        else:
            if (before.title, before.notes) != (table.title, table.notes):
                self.refresh(Region(0, 0, self.size.width, 1))
            top = self._top(table)
            for index, (old, new) in enumerate(zip(before.rows, table.rows, strict=True)):
                if old != new:
                    self._refresh_row(index, top)

    def on_mount(self) -> None:
        self.virtual_size = self._content_size()

    def on_resize(self, event: events.Resize) -> None:
        self._measure()
        self.refresh()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        top = self._top(self._table)
        index = event.y - top + self.scroll_offset.y
        if event.y >= top and index < len(self._table.keys):
            again = self._table.keys[index] == self._chosen
            self._choose(index)
            if again and event.chain == 2:
                self.action_open()

    def action_move(self, by: int) -> None:
        """To the next row; over the edge to the next table."""
        if not self._table.keys:
            at = self.scroll_offset.y
            self.scroll_relative(y=by, animate=False)
            if self.scroll_target_y == at:
                self._leave(by)
            return
        index = self._index() + by
        if 0 <= index < len(self._table.keys):
            self._choose(index)
        else:
            self._leave(by)

    def action_page(self, by: int) -> None:
        rows = max(1, self.size.height - self._top(self._table))
        if not self._table.keys:
            self.scroll_relative(y=by * rows, animate=False)
            return
        self._choose(min(len(self._table.keys) - 1, max(0, self._index() + by * rows)))

    def action_edge(self, by: int) -> None:
        if self._table.keys:
            self._choose(0 if by < 0 else len(self._table.keys) - 1)
        elif by < 0:
            self.scroll_home(animate=False)
        else:
            self.scroll_end(animate=False)

    def action_open(self) -> None:
        if self.chosen:
            self.post_message(self.Opened(self, self.chosen))

    def render_line(self, y: int) -> Strip:
        return guarded(self, lambda: self._line(y))

    def _line(self, y: int) -> Strip:
        table, total = self._table, self.scrollable_content_region.width
        if y == 0:
            return rule(self, table.title, table.notes, self.size.width, heavy=self.has_focus)
        if not table.rows:
            return flowing_line(self, (Cell("  " + table.empty, Tone.DIM),) if y == 1 else (), total)
        margin, top = self._margin(), self._top(table)
        room = total - margin
        if y < top:
            titles = tuple(Cell(column.title) for column in table.columns)
            header = table_line(self, table.columns, titles, self._widths, room)
            return self._beside("", header.apply_style(HEADER))
        index = y - top + self.scroll_offset.y
        if index >= len(table.rows):
            return Strip.blank(total, self.rich_style)
        chosen = bool(table.keys) and self.has_focus and index == self._index()
        line = table_line(self, table.columns, table.rows[index], self._widths, room, chosen)
        return self._beside("▸" if chosen else "", line)

    def _beside(self, mark: str, line: Strip) -> Strip:
        style = self.rich_style + TONES[Tone.STRONG]
        return Strip.join([Strip([Segment(mark.ljust(self._margin()), style)]), line])

    def _margin(self) -> int:
        return _MARGIN if self._table.keys else 0

    def _top(self, table: Table) -> int:
        """Lines that stay: the title, and the columns' where there are rows."""
        return 2 if table.rows and table.headed else 1

    def _content_size(self) -> Size:
        return Size(0, self._top(self._table) + max(1, len(self._table.rows)))

    def _measure(self) -> None:
        self._widths = column_widths(self._table, self.scrollable_content_region.width - self._margin())

    def _index(self) -> int:
        keys = self._table.keys
        return keys.index(self._chosen) if self._chosen in keys else 0

    def _neighbour(self, before: Table) -> str:
        """What stands now where the chosen row stood."""
        at = before.keys.index(self._chosen) if self._chosen in before.keys else 0
        return self._table.keys[min(at, len(self._table.keys) - 1)]

    def _choose(self, index: int) -> None:
        top, before = self._top(self._table), self._index()
        self._chosen = self._table.keys[index]
        self._refresh_row(before, top)
        self._refresh_row(index, top)
        rows = max(1, self.size.height - top)
        if index < self.scroll_offset.y:
            self.scroll_to(y=index, animate=False)
        elif index >= self.scroll_offset.y + rows:
            self.scroll_to(y=index - rows + 1, animate=False)

    def _refresh_row(self, index: int, top: int) -> None:
        y = top + index - self.scroll_offset.y
        if top <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def _leave(self, by: int) -> None:
        if by > 0:
            self.screen.focus_next(CellTable)
        else:
            self.screen.focus_previous(CellTable)

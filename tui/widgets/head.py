"""The first line of every screen: which screens there are, and whether what they show is of now."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui.cells import Row
from tui.look import HERE
from tui.widgets.paint import flowing, guarded


class Head(Widget):
    """Tabs, then cells. A click on a tab posts :class:`Chosen`."""

    DEFAULT_CSS = "Head { height: 1; width: 1fr; }"

    class Chosen(Message):
        """Somebody clicked on the tab of this number, from 0."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, tabs: tuple[str, ...], *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._tabs = tuple(f" {number} {tab} " for number, tab in enumerate(tabs, 1))
        self._here = 0
        self._link: Row = ()

    def show(self, here: int, link: Row) -> None:
        """Draw this instead. ``here``: the tab that is open, from 0."""
        if (here, link) != (self._here, self._link):
            self._here, self._link = here, link
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return guarded(self, self._line)

    def on_click(self, event: events.Click) -> None:
        begin = 0
        for number, tab in enumerate(self._tabs):
            if begin <= event.x < begin + cell_len(tab):
                self.post_message(self.Chosen(number))
            begin += cell_len(tab)

    def _line(self) -> Strip:
        segments = [Segment(tab, HERE if number == self._here else None) for number, tab in enumerate(self._tabs)]
        taken = sum(map(cell_len, self._tabs)) + 1
        segments.append(Segment(" "))
        segments += flowing(self._link, max(0, self.size.width - taken))
        return Strip(segments).adjust_cell_length(self.size.width).apply_style(self.rich_style)

"""A few lines of cells, as high as they are."""

from __future__ import annotations

from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tui.cells import Row
from tui.widgets.paint import flowing_line, guarded


class Lines(Widget):
    """Shows rows of cells that flow."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: tuple[Row, ...] = ()

    def show(self, lines: tuple[Row, ...]) -> None:
        """Draw these instead; only what changed is sent."""
        if lines == self._lines:
            return
        before, self._lines = self._lines, lines
        if len(before) != len(lines):
            self.refresh(layout=True)
        else:
            changed = [y for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        return guarded(self, lambda: flowing_line(self, self._lines[y], self.size.width))

"""One agent. Everything about it on a page that scrolls, in two columns where there is room."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll

from tui.cells import WIDE
from tui.picture import Picture
from tui.screens.view import FOR_AGENTS, View, put, put_lines
from tui.views import agent, agent_history
from tui.widgets.lines import Lines
from tui.widgets.table import CellTable


class AgentView(View):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.back", "Back"), *FOR_AGENTS]

    def __init__(self) -> None:
        super().__init__(id="one-agent")
        self.name_shown = ""
        self._head = Lines(id="agent-head")
        self._columns = Vertical(classes="columns")
        self._contents, self._lines, self._largest = _part("contents"), _part("lines"), _part("largest")
        self._policy, self._turns = _part("policy"), _part("agent-turns")
        self._compactions, self._breaks = _part("compactions"), _part("breaks")

    def compose(self) -> ComposeResult:
        yield self._head
        with VerticalScroll(id="agent-page", can_focus=True), self._columns:
            with Vertical(classes="column left"):
                yield self._contents
                yield self._lines
                yield self._turns
            with Vertical(classes="column right"):
                yield self._breaks
                yield self._compactions
                yield self._largest
                yield self._policy

    def on_resize(self, event: events.Resize) -> None:
        self._columns.set_class(event.size.width >= WIDE, "wide")

    def turn_to(self, name: str) -> None:
        """Show another agent, from the top of its page."""
        self.name_shown = name
        self.query_one("#agent-page", VerticalScroll).scroll_home(animate=False)

    def draw(self, picture: Picture, now: float) -> None:
        name = self.name_shown
        put_lines(self._head, lambda: agent.head(picture, name))
        put(self._contents, lambda: agent.contents(picture, name))
        put(self._lines, lambda: agent.lines(picture, name))
        put(self._largest, lambda: agent.largest(picture, name))
        put(self._policy, lambda: agent.policy(picture, name))
        put(self._turns, lambda: agent_history.turns(picture, name))
        put(self._compactions, lambda: agent_history.compactions(picture, name))
        put(self._breaks, lambda: agent_history.breaks(picture, name))

    def agent(self) -> str | None:
        return self.name_shown or None


def _part(name: str) -> CellTable:
    part = CellTable(id=name, classes="fits")
    part.can_focus = False
    return part

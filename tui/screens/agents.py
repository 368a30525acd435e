"""All agents, and their open turns."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from tui.picture import Picture
from tui.screens.view import FOR_AGENTS, FOR_TURNS, View, put
from tui.views import agents
from tui.widgets.table import CellTable


class AgentsView(View):
    BINDINGS: ClassVar[list[BindingType]] = [*FOR_AGENTS, *FOR_TURNS]

    def __init__(self) -> None:
        super().__init__(id="all-agents")
        self._agents = CellTable(id="agents-table", classes="most")
        self._turns = CellTable(id="turns", classes="fills")

    def compose(self) -> ComposeResult:
        yield self._agents
        yield self._turns

    def draw(self, picture: Picture, now: float) -> None:
        put(self._agents, lambda: agents.agents(picture))
        put(self._turns, lambda: agents.open_turns(picture, now))

    def agent(self) -> str | None:
        return self._agents.chosen

    def turn(self) -> str | None:
        return self._turns.chosen

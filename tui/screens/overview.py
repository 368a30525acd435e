"""The overview."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from tui.picture import Picture
from tui.screens.view import FOR_AGENTS, View, put, put_lines
from tui.views import agents, overview
from tui.widgets.lines import Lines
from tui.widgets.table import CellTable


class OverviewView(View):
    BINDINGS: ClassVar[list[BindingType]] = [*FOR_AGENTS]

    def __init__(self) -> None:
        super().__init__(id="overview")
        self._engine = Lines(id="engine-lines")
        self._agents = CellTable(id="agents", classes="half")
        self._tiers = CellTable(id="tiers", classes="third")
        self._news = CellTable(id="news", classes="fills")
        self._tiers.can_focus = False

    def compose(self) -> ComposeResult:
        yield self._engine
        yield self._tiers
        yield self._agents
        yield self._news

    def draw(self, picture: Picture, now: float) -> None:
        put_lines(self._engine, lambda: overview.engine_lines(picture))
        put(self._tiers, lambda: overview.tiers(picture))
        put(self._agents, lambda: agents.agents(picture, brief=True))
        put(self._news, lambda: overview.news(picture))

    def agent(self) -> str | None:
        return self._agents.chosen

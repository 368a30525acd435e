"""The engine: its figures, what the canary found, what has happened to it, and its log."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.picture import Picture
from tui.screens.view import View, put, put_lines
from tui.views import engine, overview
from tui.widgets.lines import Lines
from tui.widgets.table import CellTable


class EngineView(View):
    def __init__(self) -> None:
        super().__init__(id="engine")
        self._engine = Lines(id="engine-facts")
        self._sizes = CellTable(id="tier-sizes", classes="fits")
        self._canary = CellTable(id="canary", classes="third")
        self._notices = CellTable(id="notices", classes="third")
        self._log = CellTable(id="engine-log", classes="fills")
        self._sizes.can_focus = False

    def compose(self) -> ComposeResult:
        yield self._engine
        yield self._sizes
        yield self._canary
        yield self._notices
        yield self._log

    def draw(self, picture: Picture, now: float) -> None:
        put_lines(self._engine, lambda: overview.engine_lines(picture)[:2])
        put(self._sizes, lambda: overview.tier_sizes(picture))
        put(self._canary, lambda: engine.proven(picture, now))
        put(self._notices, lambda: engine.notices(picture))
        put(self._log, lambda: engine.log_tail(picture))

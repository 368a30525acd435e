"""The log, with a word to look for."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from tui.picture import Picture
from tui.screens.view import View, put
from tui.views import log
from tui.widgets.table import CellTable

_LONGEST_NEEDLE = 60


class Filter(Input):
    """Where the word is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Show all")]

    def action_close(self) -> None:
        self.query_ancestor(LogView).action_show_all()


class LogView(View):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("d", "decisions", "Decisions/ends"),
        Binding("escape", "show_all", "Show all", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="log-view")
        self._filter = Filter(id="filter", compact=True, max_length=_LONGEST_NEEDLE, placeholder="only lines with ...")
        self._log = CellTable(id="log", classes="fills")
        self._decisions = False

    def compose(self) -> ComposeResult:
        yield self._filter
        yield self._log

    def draw(self, picture: Picture, now: float) -> None:
        make = log.decisions if self._decisions else log.happenings
        put(self._log, lambda: make(picture, needle=self._filter.value.strip()))

    def action_filter(self) -> None:
        self._filter.add_class("open")
        self._filter.focus()

    def action_decisions(self) -> None:
        self._decisions = not self._decisions
        self.post_message(self.Stale())

    def action_show_all(self) -> None:
        self._filter.value = ""
        self._filter.remove_class("open")
        self._log.focus()

    @on(Input.Changed, "#filter")
    def _typed(self) -> None:
        self.post_message(self.Stale())

    @on(Input.Submitted, "#filter")
    def _look(self) -> None:
        """Keep the word, and go on in the table."""
        self._log.focus()

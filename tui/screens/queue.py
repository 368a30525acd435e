"""The queue: L1 as booked, who holds it, who waits and why, whom the owner holds."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from tui.picture import Picture
from tui.screens.view import FOR_TURNS, View, put
from tui.views import queue
from tui.widgets.table import CellTable


class QueueView(View):
    BINDINGS: ClassVar[list[BindingType]] = [*FOR_TURNS, Binding("p", "screen.pause", "Pause")]

    def __init__(self) -> None:
        super().__init__(id="queue")
        self._booked = CellTable(id="booked", classes="fits")
        self._booked.can_focus = False
        self._leases = CellTable(id="leases", classes="half")
        self._waiting = CellTable(id="waiting", classes="fills")
        self._held = CellTable(id="held", classes="third")
        self._agents: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        yield self._booked
        yield self._leases
        yield self._waiting
        yield self._held

    def draw(self, picture: Picture, now: float) -> None:
        turns = () if picture.snapshot is None else picture.snapshot.turns
        self._agents = {turn.turn_id: turn.agent for turn in turns}
        put(self._booked, lambda: queue.booked(picture))
        put(self._leases, lambda: queue.leases(picture))
        put(self._waiting, lambda: queue.waiting(picture))
        put(self._held, lambda: queue.held(picture))

    def turn(self) -> str | None:
        """Of the table that has the focus."""
        return self._waiting.chosen if self._waiting.has_focus else self._leases.chosen

    def agent(self) -> str | None:
        """The one that is held, or whose turn is chosen."""
        return self._held.chosen if self._held.has_focus else self._agents.get(self.turn() or "")

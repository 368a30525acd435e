"""The dashboard with a banner above it, and a key that starts the demo over in its other mode.

What the banner says is made by whoever runs the demo: this knows the admin API's types only, as all of ``tui`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from tui.app import Dashboard
from tui.cells import Row
from tui.client import ClientTimes, Find
from tui.picture import Picture
from tui.screens.main import MainScreen
from tui.widgets.lines import Lines

MakeBanner = Callable[[], tuple[Row, ...]]
"""What the banner says now."""


class DemoScreen(MainScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("g", "switch", "Govern/not", priority=True)]
    """Goes before what tables do with the key."""

    def __init__(self, owner: Dashboard, banner: MakeBanner, switch: Callable[[], None]) -> None:
        super().__init__(owner)
        self._make_banner = banner
        self._switch = switch
        self._banner = Lines(id="banner")

    def compose(self) -> ComposeResult:
        yield self._banner
        yield from super().compose()

    def draw(self, picture: Picture, now: float) -> None:
        self._banner.show(self._make_banner())
        super().draw(picture, now)

    def action_switch(self) -> None:
        self._switch()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A text that is typed may have any letter."""
        return not isinstance(self.focused, Input) if action == "switch" else super().check_action(action, parameters)


class DemoDashboard(Dashboard):
    """``now``: Unix time in seconds as the demo's governor has it. ``switch`` starts over in the other mode."""

    def __init__(
        self,
        find: Find,
        *,
        now: Callable[[], float],
        banner: MakeBanner,
        switch: Callable[[], None],
        client_times: ClientTimes | None = None,
    ) -> None:
        super().__init__(find, now=now, client_times=client_times, client="top")
        self._main = DemoScreen(self, banner, switch)

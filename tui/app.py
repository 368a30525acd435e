"""The dashboard's app: one overview, a worker that follows the governor, and the handlers that change widgets."""

from __future__ import annotations

import logging
import time
from asyncio import sleep
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.theme import BUILTIN_THEMES
from textual.widgets import Footer

from tui import view_model
from tui.client import ClientTimes, Disconnected, Find, GovernorClient, Update
from tui.screens.help import HelpScreen
from tui.view_model import Picture
from tui.widgets.head import Head
from tui.widgets.table import CellTable

_logger = logging.getLogger(__name__)

_DRAW_EVERY_S = 0.25
_AFTER_A_BUG_S = 5.0

_ANSI = BUILTIN_THEMES["ansi-dark"]
TERMINAL = replace(
    _ANSI,
    name="terminal",
    warning="ansi_magenta",
    accent="ansi_blue",
    variables={
        **_ANSI.variables,
        "scrollbar": "ansi_bright_black",
        "scrollbar-background": "ansi_default",
        "footer-background": "ansi_default",
        "footer-key-foreground": "ansi_blue",
    },
)
"""The terminal's own colours, light or dark as its owner has them. No yellow, which a light one does not show."""


class Dashboard(App[None]):
    """``governor top``. ``find`` says where the governor is; ``now`` is Unix time in seconds."""

    TITLE = "governor"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", key_display="q"),
        Binding("question_mark", "help", "Help", key_display="?"),
    ]
    CSS = """
    CellTable { border-top: solid $foreground; scrollbar-size-vertical: 1; overflow-x: hidden; padding: 0; }
    CellTable:focus { border-top: heavy $primary; border-title-style: bold; }
    #agents { height: auto; max-height: 45%; }
    #turns { height: auto; max-height: 30%; }
    #log { height: 1fr; }
    .tone--strong { text-style: bold; }
    .tone--dim { text-style: dim; }
    .tone--good { color: $success; }
    .tone--warn { color: $warning; text-style: bold; }
    .tone--bad { color: $error; text-style: bold; }
    .table--header { text-style: underline; }
    HelpScreen { align: center middle; }
    #help { width: 64; max-width: 100%; height: auto; max-height: 100%; border: solid $foreground; padding: 0 1; }
    """

    class Updated(Message):
        """The worker has heard something."""

        def __init__(self, update: Update) -> None:
            super().__init__()
            self.update = update

    def __init__(
        self, find: Find, *, now: Callable[[], float] = time.time, client_times: ClientTimes | None = None
    ) -> None:
        super().__init__(ansi_color=True)
        self._client = GovernorClient(find, client_times)
        self._now = now
        self.picture = Picture()
        self._head = Head(id="head")
        self._agents = CellTable("agents", id="agents")
        self._turns = CellTable("open turns", id="turns")
        self._ended = CellTable("log", id="log")
        self._ended_drawn: object = None

    def compose(self) -> ComposeResult:
        yield self._head
        with Vertical():
            yield self._agents
            yield self._turns
            yield self._ended
        yield Footer()

    def on_mount(self) -> None:
        self.register_theme(TERMINAL)
        self.theme = TERMINAL.name
        self._draw()
        self.set_interval(_DRAW_EVERY_S, self._draw)
        self.run_worker(self._follow(), exit_on_error=False)

    def on_dashboard_updated(self, message: Updated) -> None:
        self.picture = view_model.updated(self.picture, message.update)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def _draw(self) -> None:
        """Show the picture; widgets skip what they show already."""
        picture, now = self.picture, self._now()
        self._head.show(view_model.head(picture, now))
        self._agents.show(view_model.agents(picture))
        self._turns.show(view_model.open_turns(picture, now))
        drawn = (picture.log, picture.snapshot is None)
        if drawn != self._ended_drawn:
            self._ended_drawn = drawn
            self._ended.show(view_model.log(picture))

    def _tell(self, update: Update) -> None:
        self.post_message(self.Updated(update))

    async def _follow(self) -> None:
        """The worker: posts what the client tells."""
        while True:
            try:
                await self._client.follow(self._tell)
            except Exception as error:
                _logger.exception("following the governor failed")
                self._tell(Disconnected(f"a bug of ours: {type(error).__name__}", _AFTER_A_BUG_S))
                await sleep(_AFTER_A_BUG_S)

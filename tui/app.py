"""The dashboard's app: follows the governor, draws what it hears at a bounded pace, and has it act."""

from __future__ import annotations

import logging
import time
from asyncio import sleep
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from governor.acts import Act
from governor.pages import PolicyValueView
from governor.visible import visible
from tui import look, picture
from tui.client import ClientTimes, Disconnected, Find, GovernorClient, NotActed, NotConnected
from tui.picture import Fetched, News, NotFetched, Page, Picture
from tui.screens.main import MainScreen

_logger = logging.getLogger(__name__)

_DRAW_EVERY_S = 0.25
"""So often at most, whatever happens."""
_TICK_S = 1.0
"""So often at least: times go on while nothing happens. Also so often at most while there is more news than one could
read: lists would be sent as a whole with each picture, and the link may be slow."""
_FLOOD = 20
"""Pieces of news from one look to the next."""
_LOOK_EVERY_S = 0.5
_PAGE_AGE_S = 4.0
"""A page that is looked at is asked for again when it is so old."""
_AFTER_A_BUG_S = 5.0
_LONGEST_SAID = 300


class Dashboard(App[None]):
    """``governor top``. ``find`` says where the governor is; ``now`` is Unix time in seconds. ``client``: the name it
    acts under, ``top`` or ``web``."""

    TITLE = "governor"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False, priority=True)]
    CSS = look.CSS

    def __init__(
        self,
        find: Find,
        *,
        now: Callable[[], float] = time.time,
        client_times: ClientTimes | None = None,
        client: str = "top",
    ) -> None:
        super().__init__(ansi_color=True)
        self._client = GovernorClient(find, client_times, client)
        self._now = now
        self._news: deque[News] = deque()
        self._drawn_at = 0.0
        self.picture = Picture()
        self._main = MainScreen(self)

    def get_default_screen(self) -> MainScreen:
        return self._main

    def on_mount(self) -> None:
        self.register_theme(look.TERMINAL)
        self.theme = look.TERMINAL.name
        self._draw()
        self.set_interval(_DRAW_EVERY_S, self._draw_news)
        self.run_worker(self._follow(), exit_on_error=False)
        self.run_worker(self._look(), exit_on_error=False)

    def act(self, act: Act) -> None:
        """Have it done; the outcome is shown."""
        self.run_worker(self._told(self._act(act)), exit_on_error=False)

    def with_policy(self, agent: str, then: Callable[[Sequence[PolicyValueView]], None]) -> None:
        """Call ``then`` with what holds for the agent, or with nothing where that cannot be had."""
        self.run_worker(self._told(self._with_policy(agent, then)), exit_on_error=False)

    def say(self, text: str, *, failed: bool = False) -> None:
        """Show a line for a moment."""
        self.notify(visible(text, _LONGEST_SAID), severity="error" if failed else "information", markup=False)

    def _draw_news(self) -> None:
        """All that came since the last time, at once."""
        waited_s = time.monotonic() - self._drawn_at
        if waited_s >= _TICK_S or 0 < len(self._news) <= _FLOOD:
            self._draw()

    def _draw(self) -> None:
        self.picture = picture.updated_by_all(self.picture, self._news)
        self._news.clear()
        self._drawn_at = time.monotonic()
        self._main.draw(self.picture, self._now())

    async def _follow(self) -> None:
        """The worker that hears of everything."""
        while True:
            try:
                await self._client.follow(self._news.append)
            except Exception as error:
                _logger.exception("following the governor failed")
                self._news.append(Disconnected(f"a bug of ours: {type(error).__name__}", _AFTER_A_BUG_S))
                await sleep(_AFTER_A_BUG_S)

    async def _look(self) -> None:
        """The worker that asks for pages while somebody looks at them."""
        seen, asked_at = "", 0.0
        while True:
            agent, engine = self._main.open_agent, self._main.shows_engine
            wanted = f"agent {agent}" if agent is not None else "engine" if engine else ""
            if wanted and (wanted != seen or time.monotonic() - asked_at >= _PAGE_AGE_S):
                asked_at = time.monotonic()
                if agent is not None:
                    self.picture = picture.turned_to(self.picture, agent)
                    await self._ask("policy", self._client.policy(agent))
                    await self._ask("context", self._client.context(agent))
                else:
                    await self._ask("engine log", self._client.engine_log())
            seen = wanted
            await sleep(_LOOK_EVERY_S)

    async def _ask(self, what: str, page: Awaitable[Page]) -> None:
        try:
            self._news.append(Fetched(await page))
        except NotConnected as error:
            self._news.append(NotFetched(what, str(error)))
        except Exception as error:
            _logger.exception("asking for the %s failed", what)
            self._news.append(NotFetched(what, f"a bug of ours: {type(error).__name__}"))

    async def _told(self, work: Awaitable[None]) -> None:
        """Our own bugs end the work and not the dashboard, and are seen."""
        try:
            await work
        except Exception as error:
            _logger.exception("a key's work failed")
            self.say(f"a bug of ours: {type(error).__name__}", failed=True)

    async def _act(self, act: Act) -> None:
        try:
            acted = await self._client.act(act)
        except (NotActed, NotConnected) as error:
            self.say(f"{act.name}: {error}", failed=True)
        else:
            self.say(acted.detail)

    async def _with_policy(self, agent: str, then: Callable[[Sequence[PolicyValueView]], None]) -> None:
        try:
            values = (await self._client.policy(agent)).values
        except NotConnected:
            values = ()
        then(values)

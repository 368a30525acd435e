"""The one screen that everything is on: tabs, the view that is open, keys. Turns keys into acts and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer

from governor.acts import (
    Act,
    CancelTurn,
    CompactNow,
    PauseAgent,
    ReloadPolicies,
    ResumeAgent,
    SetPolicy,
    SliceTurn,
)
from governor.pages import PolicyValueView
from tui.cells import Cell, Row, Tone, external
from tui.picture import Picture
from tui.screens.agent import AgentView
from tui.screens.agents import AgentsView
from tui.screens.dialogs import Confirm, SetKey, Wanted
from tui.screens.engine import EngineView
from tui.screens.help import HelpScreen
from tui.screens.log import LogView
from tui.screens.overview import OverviewView
from tui.screens.queue import QueueView
from tui.screens.view import View
from tui.views import head
from tui.widgets.head import Head
from tui.widgets.lines import Lines
from tui.widgets.table import CellTable

TABS = ("overview", "agents", "queue", "engine", "log")
_AGENTS = 1


class Owner(Protocol):
    """Who carries out what the keys ask for. None of it blocks."""

    def act(self, act: Act) -> None:
        """Have it done; the outcome is shown."""

    def with_policy(self, agent: str, then: Callable[[Sequence[PolicyValueView]], None]) -> None:
        """Call ``then`` with what holds for the agent, or with nothing where that cannot be had."""

    def say(self, text: str) -> None:
        """Show a line for a moment."""


class MainScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(f"{number}", f"tab({number - 1})", tab, show=False) for number, tab in enumerate(TABS, 1)),
        Binding("tab", "step(1)", "Next screen", show=False),
        Binding("shift+tab", "step(-1)", "Screen before", show=False),
        Binding("P", "pause(True)", "Pause now", show=False),
        Binding("r", "reload", "Reload"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._head = Head(TABS, id="head")
        self._trouble = Lines(id="trouble")
        self._one = AgentView()
        self._views: tuple[View, ...] = (OverviewView(), AgentsView(), QueueView(), EngineView(), LogView())
        self._open: View = self._views[0]
        self._picture = Picture()
        self._drawn_at = 0.0

    @property
    def open_agent(self) -> str | None:
        """Whose own screen is open."""
        return self._one.name_shown if self._open is self._one else None

    @property
    def shows_engine(self) -> bool:
        return isinstance(self._open, EngineView)

    @property
    def here(self) -> int:
        """Number of the open tab, from 0."""
        return _AGENTS if self._open is self._one else self._views.index(self._open)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._trouble
        with ContentSwitcher(initial=self._open.id):
            yield from self._views
            yield self._one
        yield Footer()

    def on_mount(self) -> None:
        self._focus()

    def draw(self, picture: Picture, now: float) -> None:
        """Show the picture on the view that is open."""
        self._picture, self._drawn_at = picture, now
        self._head.show(self.here, head.link(picture, now))
        self._trouble.show(head.trouble(picture, now))
        self._open.draw(picture, now)

    def action_tab(self, number: int) -> None:
        self._turn_to(self._views[number])

    def action_step(self, by: int) -> None:
        self.action_tab((self.here + by) % len(TABS))

    def action_back(self) -> None:
        self.action_tab(_AGENTS)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen())

    def action_reload(self) -> None:
        self._owner.act(ReloadPolicies())

    def action_pause(self, running: bool = False) -> None:
        """Pause the chosen agent, or resume it. ``running``: only pause it, and what it writes, too."""
        agent = self._agent()
        if agent is None:
            return
        views = () if self._picture.snapshot is None else self._picture.snapshot.agents
        held = any(view.held for view in views if view.name == agent)
        self._owner.act(ResumeAgent(agent=agent) if held and not running else PauseAgent(agent=agent, running=running))

    def action_compact(self) -> None:
        agent = self._agent()
        if agent is not None:
            what = "Its next prompt is made shorter: older content is left out of it."
            self._ask(CompactNow(agent=agent), "compact", agent, what)

    def action_set(self) -> None:
        agent = self._agent()
        if agent is None:
            return

        def entered(answer: Wanted | None) -> None:
            if answer is not None:
                self._owner.act(SetPolicy(agent=agent, key=answer.key, value=answer.value))

        def ask(values: Sequence[PolicyValueView]) -> None:
            self.app.push_screen(SetKey(agent, values), entered)

        self._owner.with_policy(agent, ask)

    def action_cancel(self) -> None:
        turn = self._turn()
        if turn is not None:
            what = "Its client gets an error; what it has written is lost."
            self._ask(CancelTurn(turn=turn), "cancel", self._described(turn), what)

    def action_slice(self) -> None:
        turn = self._turn()
        if turn is not None:
            self._owner.act(SliceTurn(turn=turn))

    @on(Head.Chosen)
    def _clicked(self, message: Head.Chosen) -> None:
        self.action_tab(message.number)

    @on(View.Stale)
    def _draw_again(self) -> None:
        self._open.draw(self._picture, self._drawn_at)

    @on(CellTable.Opened, "#agents, #agents-table, #held")
    def _opened(self, message: CellTable.Opened) -> None:
        self._one.turn_to(message.key)
        self._turn_to(self._one)

    def _turn_to(self, view: View) -> None:
        self._open = view
        self.query_one(ContentSwitcher).current = view.id
        self.draw(self._picture, self._drawn_at)
        self._focus()

    def _focus(self) -> None:
        """So that keys go to the view that is open."""
        for widget in self._open.query("*"):
            if widget.focusable and widget.id != "filter":
                widget.focus(scroll_visible=False)
                return

    def _agent(self) -> str | None:
        agent = self._open.agent()
        if agent is None:
            self._owner.say("no agent is chosen here")
        return agent

    def _turn(self) -> str | None:
        turn = self._open.turn()
        if turn is None:
            self._owner.say("no turn is chosen here")
        return turn

    def _described(self, turn_id: str) -> str:
        turns = () if self._picture.snapshot is None else self._picture.snapshot.turns
        return next((f"{turn_id} of {turn.agent}" for turn in turns if turn.turn_id == turn_id), turn_id)

    def _ask(self, act: Act, verb: str, target: str, what: str) -> None:
        """Do it after a yes."""
        lines: tuple[Row, ...] = ((Cell(verb, Tone.BAD), external(target, Tone.STRONG)), (Cell(what),))

        def answered(yes: bool | None) -> None:
            if yes:
                self._owner.act(act)

        self.app.push_screen(Confirm(lines), answered)

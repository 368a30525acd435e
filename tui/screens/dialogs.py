"""Small dialogs: a question before what cannot be undone, and a key of a policy to set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input

from governor.acts import PolicyValue
from governor.pages import PolicyValueView
from tui.cells import Cell, Row, Tone, external
from tui.widgets.lines import Lines

_SHOWN = 8
_LONGEST = 300


class Confirm(ModalScreen[bool]):
    """Yes or no, to lines of what will happen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No", key_display="n"),
    ]

    def __init__(self, lines: Sequence[Row]) -> None:
        super().__init__()
        self._lines = tuple(lines)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            lines = Lines()
            lines.show((*self._lines, (), (Cell("y  yes", Tone.STRONG), Cell("n  no", Tone.STRONG))))
            yield lines

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Wanted(msgspec.Struct, frozen=True):
    """A key and what it shall be; ``None``: taken out of the agent's file."""

    key: str
    value: PolicyValue | None


def wanted(text: str) -> Wanted | str:
    """``key = value`` as typed, or what is wrong with it. A value is JSON, or else a word; none takes the key out."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        return "type a key, = and a value; no value takes the key out of the file"
    if not value:
        return Wanted(key, None)
    try:
        return Wanted(key, msgspec.json.decode(value, type=bool | int | float | str | list[str]))
    except msgspec.DecodeError:
        return Wanted(key, value)


class SetKey(ModalScreen[Wanted | None]):
    """One line ``key = value``, beside what is in force."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Leave all as it is"),
        Binding("tab", "complete", "Complete the key", priority=True),
    ]

    def __init__(self, agent: str, values: Sequence[PolicyValueView]) -> None:
        super().__init__()
        self._agent = agent
        self._values = tuple(values)
        self._input = Input(id="wanted", max_length=_LONGEST, placeholder="output.final = 4096")
        self._hints = Lines(id="hints")

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            title = Lines()
            title.show(((Cell("set a key in the policy file of", Tone.STRONG), external(self._agent, Tone.STRONG)),))
            yield title
            yield self._input
            yield self._hints
        yield Footer()

    def on_mount(self) -> None:
        self._show("")
        self._input.focus()

    def action_complete(self) -> None:
        """The first key that fits, with its value."""
        matches = self._matching(self._input.value)
        if matches:
            self._input.value = f"{matches[0].key} = {matches[0].value}"
            self._input.action_end()

    @on(Input.Changed, "#wanted")
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted, "#wanted")
    def _entered(self, event: Input.Submitted) -> None:
        answer = wanted(event.value)
        if isinstance(answer, Wanted):
            self.dismiss(answer)
        else:
            self._hints.show(((Cell(answer, Tone.BAD),),))

    def _matching(self, text: str) -> list[PolicyValueView]:
        key = text.partition("=")[0].strip()
        starts = [each for each in self._values if each.key.startswith(key)]
        return starts + [each for each in self._values if key in each.key and each not in starts]

    def _show(self, text: str) -> None:
        matches = self._matching(text)
        rows: list[Row] = [
            (
                external(f"{each.key} = {each.value}", Tone.STRONG if each.own else Tone.PLAIN),
                external(each.source.rpartition("/")[2], Tone.DIM),
            )
            for each in matches[:_SHOWN]
        ]
        if len(matches) > _SHOWN:
            rows.append((Cell(f"and {len(matches) - _SHOWN} more: type a part of the key", Tone.DIM),))
        rows.append((Cell("Enter writes it; comments in the file are kept", Tone.DIM),))
        self._hints.show(tuple(rows))

"""Colours and styles, in one place.

Text and ground are the terminal's own, light or dark as its owner has them. The other colours are of middling
lightness, so that they can be read on both; terminals with fewer colours get the nearest they have. Nothing is told by
colour alone (:mod:`tui.cells`), so ``NO_COLOR`` takes nothing away.

What cells look like is no matter of the style sheet: a class for each tone in each widget would be worked out anew with
every change of focus, which is most of what a key costs.
"""

from __future__ import annotations

from dataclasses import replace

from rich.style import Style
from textual.theme import BUILTIN_THEMES

from tui.cells import Tone

_COLOURS = {
    Tone.GOOD: "#2f9e44",
    Tone.WARN: "#d9730d",
    Tone.BAD: "#e03131",
    Tone.L1: "#12a594",
    Tone.L2: "#3b82f6",
    Tone.L3: "#8b5cf6",
    Tone.NEW: "#d9730d",
    Tone.HUE0: "#d6409f",
    Tone.HUE1: "#b7791f",
    Tone.HUE2: "#2b9ac8",
    Tone.HUE3: "#5b9a32",
    Tone.HUE4: "#a259c4",
    Tone.HUE5: "#e0654a",
    Tone.HUE6: "#8a8a1f",
    Tone.HUE7: "#a0765b",
}
_GREY, _PALE, _ON_AREA = "#64748b", "#94a3b8", "#ffffff"
_STRESS = {
    Tone.STRONG: Style(bold=True),
    Tone.WARN: Style(bold=True),
    Tone.BAD: Style(bold=True),
    Tone.DIM: Style(dim=True),
}
TONES = {tone: Style(color=_COLOURS.get(tone)) + _STRESS.get(tone, Style()) for tone in Tone}
"""Text in each tone, over a widget's own style."""
AREAS = {tone: Style(color=_ON_AREA, bgcolor=_COLOURS.get(tone, _PALE if tone is Tone.DIM else _GREY)) for tone in Tone}
"""Text on a ground of each tone."""
CHOSEN, HERE = Style(bold=True, reverse=True), Style(bold=True, reverse=True)
TITLE, HEADER = Style(bold=True), Style(underline=True)

_ANSI = BUILTIN_THEMES["ansi-dark"]
TERMINAL = replace(
    _ANSI,
    name="terminal",
    primary=_COLOURS[Tone.L2],
    warning=_COLOURS[Tone.WARN],
    accent=_COLOURS[Tone.L2],
    variables={
        **_ANSI.variables,
        "scrollbar": "ansi_bright_black",
        "scrollbar-background": "ansi_default",
        "footer-background": "ansi_default",
        "footer-key-foreground": _COLOURS[Tone.L2],
        "footer-description-foreground": "ansi_default",
    },
)


CSS = """
CellTable, Lines { scrollbar-size-vertical: 1; overflow-x: hidden; padding: 0; }
ContentSwitcher { height: 1fr; }
View { height: 1fr; width: 1fr; }
Lines { height: auto; }
.fits { height: auto; }
.fills { height: 1fr; }
.third { height: auto; max-height: 34%; }
.most { height: auto; max-height: 60%; }
.half { height: auto; max-height: 50%; }
Filter { height: 1; border: none; padding: 0 1; display: none; }
Filter.open { display: block; }
ModalScreen { align: center middle; }
.dialog { width: 72; max-width: 100%; height: auto; max-height: 100%; border: round $primary; padding: 0 1; }
.dialog Input { border: none; border-top: solid $primary; border-bottom: solid $primary; height: 3; padding: 0; }
.columns { layout: vertical; height: auto; }
.columns.wide { layout: horizontal; }
.columns .column { height: auto; width: 1fr; }
.columns.wide .column { width: 1fr; }
.columns.wide .column.left { padding: 0 2 0 0; }
Toast { width: 60; max-width: 80%; }
"""

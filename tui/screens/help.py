"""What the keys do and what the figures mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_TEXT = """\
Keys
  q         quit; the governor runs on
  ?         this page; q, ? or Esc closes it
  Tab       next table; arrows, PgUp, PgDn scroll it

Figures
  -         unknown: nobody reported it (0 is a report)
  12.3K+    at least: some turns ended unreported
  K, M      thousand, million

Agents, since the governor started
  run wait  turns at the engine, turns that wait
  fail      turns that ended neither ok nor truncated
  prompt    prompt tokens; cached: share from a cache
  out       tokens generated
  ttft      time to first token of the last turn, from
            its arrival on, waiting included
  policy    ok, or why its file is bad (the last good
            one is in force then)

Open turns
  phase     reading, waiting, prefill, decode or paused
  for       since its arrival
  cap       most tokens it may generate
  sent      bytes of answer so far

Log, newest first
  truncated ended well, at its cap
"""


class HelpScreen(ModalScreen[None]):
    """Help over the overview."""

    BINDINGS: ClassVar[list[BindingType]] = [("question_mark,escape,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(_TEXT, markup=False)

"""What the keys do and what the figures mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_TEXT = """\
Screens
  1 2 3 4 5  overview, agents, queue, engine, log
  Tab        the next one; Shift+Tab the one before
  Enter      the chosen agent's own screen; Esc back
  ?          this page; ?, q or Esc closes it
  q          quit; the governor runs on

In tables
  arrows     choose a row; over the edge to the next
  PgUp PgDn  Home End

The chosen agent
  p          pause it: its turns wait; again: resume
  P          pause it and what it writes right now
  c          make its next prompt shorter
  s          set a key of its policy file, as in
             output.final = 4096

The chosen turn (agents, queue)
  x          cancel it: its client gets an error
  z          slice it: others go first, it goes on

Anywhere
  r          read all policy files now
  /          in the log: only lines with a word
  d          in the log: the scheduler's decisions
             All of these are logged, and shown to
             everybody who watches.

Figures
  -          unknown: nobody reported it (0 is a report)
  ~          an estimate
  12.3K+     at least: some turns ended unreported
  K, M       thousand, million

Where a context is, what served a prompt
  █ L1       GPU memory: at once
  ▓ L2       host memory: copied back
  ▒ L3       disk: read back
  x          held, and of no use: behind a hole
  ▚          cached, the engine does not tell where
  ·          gone, or computed: prefilled
  ?          nobody knows

Agents
  of         share of the window it may use; │ in the
             bar: its prompts are made shorter from here
  hit        share of its prompts from a cache
  ttft       time to first token of the last turn, from
             its arrival on, waiting included
  cap        share of its output cap that was used
  again      tokens computed again that a cache had
             held; the agent's screen says why
  held       paused by the owner

Tiers
  held for   by agent; first what contexts of several
             share, last what is of no last turn here
  served     tokens that it gave back
  pays       served for each token written into it
  states     checkpoints held, and room for them
  proven     by the last 'governor canary'

Queue
  booked     KV tokens that a turn may come to hold
  first in   from then on it goes before everybody
"""


class HelpScreen(ModalScreen[None]):
    """Help over any screen."""

    BINDINGS: ClassVar[list[BindingType]] = [("question_mark,escape,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(_TEXT, markup=False)

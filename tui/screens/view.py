"""What the five screens have in common: a picture is drawn into their panels, each on its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message

from tui.cells import Cell, Row, Table, Tone
from tui.picture import Picture
from tui.widgets.lines import Lines
from tui.widgets.table import CellTable

_logger = logging.getLogger(__name__)

FOR_AGENTS = (
    Binding("p", "screen.pause", "Pause"),
    Binding("c", "screen.compact", "Compact"),
    Binding("s", "screen.set", "Set"),
)
"""On screens where an agent is chosen."""
FOR_TURNS = (
    Binding("x", "screen.cancel", "Cancel"),
    Binding("z", "screen.slice", "Slice"),
)
"""On screens where a turn is chosen."""
_BUG = "a bug of ours, see logs/top.log"


class View(Vertical):
    """One screen. Holds no state of the governor's."""

    class Stale(Message):
        """What is to be seen has changed by a key: draw it now."""

    def draw(self, picture: Picture, now: float) -> None:
        """Show the picture; panels skip what they show already. ``now`` is Unix time in seconds."""
        raise NotImplementedError

    def agent(self) -> str | None:
        """The one that keys act on."""
        return None

    def turn(self) -> str | None:
        """The one that keys act on."""
        return None


def put(panel: CellTable, make: Callable[[], Table]) -> None:
    """Show a table. Where it cannot be made, the panel says so and the others go on."""
    try:
        panel.show(make())
    except Exception:
        _logger.exception("panel %s cannot be shown", panel.id)
        panel.show(Table(title=panel.id or "", empty=_BUG))


def put_lines(panel: Lines, make: Callable[[], tuple[Row, ...]]) -> None:
    """As :func:`put`."""
    try:
        panel.show(make())
    except Exception:
        _logger.exception("lines %s cannot be shown", panel.id)
        panel.show(((Cell(_BUG, Tone.BAD),),))

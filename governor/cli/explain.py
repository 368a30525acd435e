"""``governor explain``: why a turn waited, ran, was paused; from the turn log, whether a governor runs or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from governor import instance
from governor.cli.console import Exit, fail, out, plain_table, print_json, shown, told_errors
from governor.cli.log import DatabaseOption, log_reader
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status import ask
from governor.cli.story import Now, Step, now_of, story
from governor.settings import Home
from governor.snapshot import Snapshot
from governor.types import TurnId, TurnState
from governor.visible import visible

if TYPE_CHECKING:
    from governor.store.query import TurnLogReader

_NAMED = 5
"""Turns that an error names."""
_LONGEST_WANTED = 80


def explain(
    turn: Annotated[str, typer.Argument(help="A turn's id, or how it begins if only one does.", show_default=False)],
    home: HomeOption,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell a turn's story: each decision about it, when, and why, with the figures it was decided by.

    The id stands in 'governor log', 'governor queue' and in the header x-governor-turn of every answer.
    """
    with told_errors():
        reader = log_reader(home, database)
        turn_id = _resolved(reader, turn)
        row = reader.turn(turn_id)
        if row is None:
            fail(f"turn {turn_id} has just left the log", Exit.USAGE)
        steps = story(row, reader.decisions(turn_id), _now(home, turn_id) if row.state is TurnState.OPEN else None)
        if as_json:
            print_json({"turn": row, "story": steps})
        else:
            out.print(f"turn {turn_id}")
            out.print(_table(steps))


def _resolved(reader: TurnLogReader, wanted: str) -> TurnId:
    """The only turn that is meant, or the end of the command."""
    found = reader.with_prefix(wanted, _NAMED + 1)
    if len(found) == 1 or wanted in found:
        return found[0]
    shown_wanted = visible(wanted, _LONGEST_WANTED)
    if found:
        more = ", ..." if len(found) > _NAMED else ""
        fail(f"several turns begin with {shown_wanted!r}: {', '.join(found[:_NAMED])}{more}", Exit.USAGE)
    last = [turn.turn_id for turn in reader.recent(limit=_NAMED)]
    known = f"the last ones are {', '.join(last)}" if last else "it has none yet"
    fail(f"the log has no turn {shown_wanted!r}; {known}", Exit.USAGE)


def _now(home: Home, turn_id: TurnId) -> Now | None:
    note = instance.running_instance(home)
    return None if note is None else now_of(msgspec.json.decode(ask(note, "/governor/state"), type=Snapshot), turn_id)


def _table(steps: list[Step]) -> Table:
    table = plain_table("after", "what", "place", "run", "wait", "needs", "booked", "free", "why")
    table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    for step in steps:
        by = step.decided
        figures = (
            ("",) * 6
            if by is None
            else (
                "" if by.position is None else str(by.position),
                shown(by.running),
                shown(by.waiting),
                shown(by.needs_tokens),
                shown(by.booked_tokens),
                shown(by.free_tokens),
            )
        )
        after = "-" if step.offset_s is None else f"{step.offset_s:.1f} s"
        table.add_row(after, step.what, *figures, escape(step.why))
    return table

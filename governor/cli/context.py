"""``governor context``: what an agent's prompt is made of, how it grew, what it cost where its prefix broke."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

import msgspec
import typer

from governor import instance
from governor.cli.console import Exit, err, fail, out, print_json, told_errors
from governor.cli.context_screen import screen
from governor.cli.log import DatabaseOption, log_reader
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status import ask
from governor.context import ContextPage, SessionNote
from governor.instance import RunNote
from governor.settings import Home
from governor.types import AgentName
from governor.visible import visible

if TYPE_CHECKING:
    from governor.store.query import TurnLogReader

_LONGEST_WANTED = 80
_READ_TURNS = 400
_GROWTH_TURNS = 40
_NAMED_SESSIONS = 5
_BELOW = 2
"""Lines of a terminal that the next prompt of the shell takes."""


def context(
    agent: Annotated[str, typer.Argument(help="Name of the agent.", show_default=False)],
    home: HomeOption,
    session: Annotated[str | None, typer.Option(help="Another of its sessions than the newest.")] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", "-n", help="So many of the largest messages; by default what fits.", min=1, max=100),
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an agent's prompt is made of: tokens by kind, the largest messages, what compression would free.

    And from the turn log: how it grew, where its prefix broke, and what that cost; without a running governor only
    this.

    \b
    governor context hermes-main
    governor context hermes-main --json | jq .report.kinds
    """
    with told_errors():
        note = instance.running_instance(home)
        page = _logged(home, database, agent, session) if note is None else _asked(note, agent, session, top)
        if as_json:
            print_json(page)
            return
        height = out.size.height - _BELOW if out.is_terminal else None
        lines = screen(page, width=_width(), height=height, top=top)
        for line in lines:
            out.print(line, no_wrap=True, overflow="crop")
        if note is None:
            err.print(
                "[dim]no governor runs from this home: this is from the turn log alone ('governor up' starts one)[/]"
            )


def _asked(note: RunNote, agent: str, session: str | None, top: int | None) -> ContextPage:
    options = {name: value for name, value in (("session", session), ("top", top)) if value is not None}
    query = f"?{urlencode(options)}" if options else ""
    path = f"/governor/agents/{quote(agent, safe='')}/context{query}"
    return msgspec.json.decode(ask(note, path), type=ContextPage)


def _logged(home: Home, database: str | None, agent: str, session: str | None) -> ContextPage:
    """What the turn log alone can tell, or the end of the command."""
    from governor.store.growth import growth_of, newest_session  # noqa: PLC0415 - as the reader, only where needed

    reader = log_reader(home, database)
    rows = reader.recent(agent=agent, limit=_READ_TURNS)
    if not rows:
        _fail_for_agent(reader, agent)
    chosen = session or newest_session(rows)
    of_session = reader.recent(agent=agent, session=chosen, limit=_READ_TURNS) if chosen else []
    counts: dict[str, int] = {}
    for row in rows:
        if row.closed is not None and row.closed.session is not None:
            counts[row.closed.session] = max(counts.get(row.closed.session, 0), row.closed.message_count or 0)
    if session is not None and not of_session:
        known = ", ".join(list(counts)[:_NAMED_SESSIONS]) or "none"
        fail(
            f"{agent} has no session {visible(session, _LONGEST_WANTED)!r} in the log; the newest are {known}",
            Exit.USAGE,
        )
    return ContextPage(
        agent=AgentName(agent),
        session=chosen,
        now=time.time(),
        report=None,
        why_no_report="only a running governor holds prompts, and none runs from this home",
        growth=growth_of(reversed(of_session), last=_GROWTH_TURNS),
        sessions=tuple(SessionNote(session=name, messages=count, held=False) for name, count in counts.items()),
    )


def _fail_for_agent(reader: TurnLogReader, agent: str) -> None:
    known = reader.agents()
    there = f"it has turns of {', '.join(known)}" if known else "it is empty"
    fail(f"the turn log has no turn of '{visible(agent, _LONGEST_WANTED)}'; {there}", Exit.USAGE)


def _width() -> int:
    return out.size.width if out.is_terminal else min(out.size.width, 120)

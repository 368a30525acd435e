"""``governor log`` and ``governor usage``: the turn log, read while the governor runs or not."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from governor.cli.console import Exit, fail, milliseconds, out, plain_table, print_json, shown, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.context import FIRST_PROMPT
from governor.settings import Home
from governor.store.model import StoredTurn, TurnClosed
from governor.types import TurnState

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from governor.store.query import TurnLogReader, UsageSummary

_SPAN = re.compile(r"(\d+)([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

DatabaseOption = Annotated[str | None, typer.Option(help="URL of the turn log, if it is not in the home.")]
SinceOption = Annotated[str | None, typer.Option(help="Only the last while: 30m, 12h, 7d.", metavar="SPAN")]
AgentOption = Annotated[str | None, typer.Option(help="Only this agent.")]


def since_time(span: str | None) -> float | None:
    """The Unix time that ``--since`` means; ends the command if it means none."""
    if span is None:
        return None
    found = _SPAN.fullmatch(span)
    if found is None:
        fail(f"--since takes a number and s, m, h or d, like 12h; not {span!r}", Exit.USAGE)
    return time.time() - int(found[1]) * _UNIT_S[found[2]]


def log_url(home: Home, database: str | None) -> str | URL:
    """Of the home's turn log, or ``database``; ends the command if the home has none yet."""
    if database is not None:
        return database
    if not home.database.exists():
        fail(f"there is no turn log in {home.root} yet; 'governor up' makes it", Exit.NOT_RUNNING)
    from governor.store.database import sqlite_url  # noqa: PLC0415 - SQLAlchemy takes a quarter of a second

    return sqlite_url(home.database)


def log_reader(home: Home, database: str | None) -> TurnLogReader:
    """The home's turn log, or the one by URL; ends the command if the home has none yet."""
    from governor.store.query import TurnLogReader  # noqa: PLC0415 - SQLAlchemy takes a quarter of a second

    return TurnLogReader(log_url(home, database))


def log(
    home: HomeOption,
    agent: AgentOption = None,
    state: Annotated[TurnState | None, typer.Option(help="Only turns that ended so.")] = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many, the newest.", min=1)] = 20,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the newest turns, oldest first. ``-`` is unknown, which is not zero.

    \b
    governor log --agent hermes-main --since 2h
    governor log --state refused --json
    """
    with told_errors():
        turns = log_reader(home, database).recent(agent=agent, state=state, since=since_time(since), limit=limit)
        turns.reverse()
        if as_json:
            for turn in turns:
                print_json(turn)
        else:
            out.print(_turn_table(turns))


def _turn_table(turns: list[StoredTurn]) -> Table:
    figures = ("in (cached)", "lost", "out/cap", "waited", "paused", "first", "all")
    table = plain_table("time", "agent", "kind", "state", *figures, "turn", "why")
    for turn in turns:
        end = turn.closed
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(turn.opened_at)) if turn.opened_at else "-"
        if end is None:
            table.add_row(at, escape(turn.agent or "-"), "-", turn.state, *["-"] * 7, turn.turn_id, "")
            continue
        table.add_row(
            at,
            escape(turn.agent or "-"),
            end.kind or "-",
            turn.state,
            f"{shown(end.usage.prompt_tokens)} ({shown(end.usage.cached_tokens)})",
            escape(_lost(turn)),
            f"{_output(end.usage.completion_tokens, end.completion_tokens_estimated)}/{shown(end.cap_applied)}",
            milliseconds(end.queued_ms),
            _pauses(end),
            milliseconds(end.ttft_ms),
            milliseconds(end.duration_ms),
            turn.turn_id,
            escape(end.reason or end.finish_reason or ""),
        )
    return table


def _lost(turn: StoredTurn) -> str:
    """The dearest cause and all tokens; of a first prompt nothing was lost."""
    losses = [loss for loss in turn.losses if loss.cause != FIRST_PROMPT]
    if not losses:
        return "-"
    known = [loss.tokens for loss in losses if loss.tokens is not None]
    return f"{f'{sum(known):,}' if known else '?'} {losses[0].cause}{' ...' if losses[1:] else ''}"


def _pauses(end: TurnClosed) -> str:
    """How often and how long in all."""
    return f"{end.pieces - 1}x {milliseconds(end.paused_ms)}" if end.pieces and end.pieces > 1 else "-"


def _output(reported: int | None, estimated: int | None) -> str:
    if reported is None and estimated is not None:
        return f"~{estimated:,}"
    return shown(reported)


def usage(
    home: HomeOption,
    agent: AgentOption = None,
    since: SinceOption = None,
    by_day: Annotated[bool, typer.Option("--by-day", help="A row for each day.")] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what each agent used: turns, prompt, cached, output. Reported and estimated figures stay apart."""
    with told_errors():
        offset_s = time.localtime().tm_gmtoff
        rows = log_reader(home, database).usage(
            agent=agent, since=since_time(since), by_day=by_day, utc_offset_s=offset_s
        )
        if as_json:
            for row in rows:
                print_json(row)
        else:
            out.print(_usage_table(rows, by_day))


def _usage_table(rows: list[UsageSummary], by_day: bool) -> Table:
    figures = ("agent", "turns", "ok", "prompt", "cached", "hit", "out", "out est.", "first p50", "p95")
    table = plain_table(*(["day"] if by_day else []), *figures)
    for row in rows:
        good = row.states.get(TurnState.OK, 0) + row.states.get(TurnState.TRUNCATED, 0)
        table.add_row(
            *([str(row.day)] if by_day else []),
            escape(row.agent or "-"),
            shown(row.turns),
            shown(good),
            shown(row.prompt_tokens),
            shown(row.cached_tokens),
            "-" if row.hit_share is None else f"{row.hit_share:.0%}",
            shown(row.completion_tokens),
            "-" if row.completion_tokens_estimated is None else f"~{row.completion_tokens_estimated:,}",
            milliseconds(row.ttft_p50_ms),
            milliseconds(row.ttft_p95_ms),
        )
    return table

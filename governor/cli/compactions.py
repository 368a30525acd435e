"""``governor compactions``: each try to make a conversation shorter, from the archive, with or without a governor."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from governor.cli.console import err, out, plain_table, print_json, shown, told_errors
from governor.cli.log import DatabaseOption, log_url
from governor.cli.options import HomeOption, JsonOption
from governor.store.archive_model import Compaction
from governor.types import AgentName
from governor.visible import LONGEST_NAME, LONGEST_REASON, visible


def compactions(
    home: HomeOption,
    agent: Annotated[str | None, typer.Argument(help="Only this agent's.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many, the newest.", min=1)] = 20,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the newest compactions, oldest first: whose, by whom, what they came to, in tokens of the whole prompt.

    \b
    governor compactions hermes-main
    governor recall gov-3f2a9c0d41b7e865
    """
    with told_errors():
        from governor.store.archive_query import ArchiveReader  # noqa: PLC0415 - SQLAlchemy takes a quarter of a second

        reader = ArchiveReader(log_url(home, database))
        found = reader.compactions(None if agent is None else AgentName(agent), limit)
    found.reverse()
    if as_json:
        for compaction in found:
            print_json(compaction)
    elif found:
        out.print(_table(found))
    else:
        whose = "" if agent is None else f" of {escape(visible(agent, LONGEST_NAME))}"
        err.print(
            f"[dim]the archive has no compaction{whose}: prompts are made shorter where compression.mode is observe or "
            "enforce, and clients' own are seen as they happen[/]"
        )


def _table(found: list[Compaction]) -> Table:
    table = plain_table("time", "agent", "by", "outcome", "before", "after", "change", "turn", "stages", "detail")
    table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    for one in found:
        table.add_row(
            time.strftime("%m-%d %H:%M:%S", time.localtime(one.at)),
            _safe(one.agent),
            one.by.value,
            _safe(one.outcome),
            shown(one.before_tokens),
            shown(one.after_tokens),
            _change(one),
            _safe(one.turn_id),
            _safe(one.stages),
            _safe(one.detail),
        )
    return table


def _change(one: Compaction) -> str:
    if not one.before_tokens or one.after_tokens is None:
        return "-"
    return f"{one.after_tokens / one.before_tokens - 1:+.0%}"


def _safe(text: str) -> str:
    return escape(visible(text, LONGEST_REASON))

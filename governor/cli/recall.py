"""``governor recall``: what left a prompt, from the archive, whether a governor runs or not."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer
from rich.markup import escape

from governor.cli.console import Exit, err, fail, print_json, told_errors
from governor.cli.log import AgentOption, DatabaseOption, log_url
from governor.cli.options import HomeOption, JsonOption
from governor.cli.readable import readable
from governor.identity.agents import KEY_FORM
from governor.store.archive_model import Recalled
from governor.types import AgentName
from governor.visible import LONGEST_REASON, visible

_FORM: Final = re.compile(r"gov-[0-9a-f]{16}")
_LONGEST_WANTED: Final = 80


def recall(
    handle: Annotated[str, typer.Argument(help="As the prompt names it: gov- and 16 digits.", show_default=False)],
    home: HomeOption,
    agent: AgentOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the JSON as it came from the client.")] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a handle in a shortened prompt stands for: a tool's result, an image, the rounds that were left out.

    \b
    governor recall gov-3f2a9c0d41b7e865
    governor recall gov-3f2a9c0d41b7e865 --raw > result.json
    """
    if raw and as_json:
        fail("--raw and --json exclude each other", Exit.USAGE)
    _check_form(handle)
    with told_errors():
        from governor.store.archive_query import ArchiveReader  # noqa: PLC0415 - SQLAlchemy takes a quarter of a second

        reader = ArchiveReader(log_url(home, database))
        found = reader.recall(handle, None if agent is None else AgentName(agent))
        if found is None:
            _fail_unknown(handle, agent, None if agent is None else reader.recall(handle))
    if raw:
        sys.stdout.buffer.write(found.left.body)
    elif as_json:
        print_json(_facts(found))
    else:
        left_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.left_at))
        facts = (
            f"{found.left.what} (agent {found.agent}, session {found.session}, turn {found.turn_id}, left {left_at})"
        )
        err.print(f"[dim]{escape(visible(facts, LONGEST_REASON))}[/]")
        sys.stdout.write(readable(found.left.body) + "\n")


def _check_form(handle: str) -> None:
    if _FORM.fullmatch(handle):
        return
    if KEY_FORM.fullmatch(handle):
        fail("that is an agent's key, not a handle: a handle is gov- and 16 hexadecimal digits", Exit.USAGE)
    shown = visible(handle, _LONGEST_WANTED)
    fail(f"{shown!r} is no handle: it is gov- and 16 hexadecimal digits, as the prompt has it", Exit.USAGE)


def _fail_unknown(handle: str, agent: str | None, anybodys: Recalled | None) -> NoReturn:
    if anybodys is not None:
        fail(f"{handle} left a prompt of agent {anybodys.agent}, not of {visible(agent or '', _LONGEST_WANTED)!r}")
    fail(
        f"the archive has nothing under {handle}: it was never there, is older than its agent's archive_days, or went "
        "for want of room; 'governor compactions' lists what was compacted"
    )


def _facts(found: Recalled) -> dict[str, Any]:
    body = found.left.body
    try:
        msgspec.json.decode(body)
        content: Any = msgspec.Raw(msgspec.json.format(body, indent=-1))  # on one line
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content = readable(body)
    return {
        "handle": found.left.handle,
        "agent": found.agent,
        "session": found.session,
        "turn_id": found.turn_id,
        "left_at": found.left_at,
        "what": found.left.what,
        "body": content,
    }

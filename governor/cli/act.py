"""``governor pause``, ``resume``, ``cancel``, ``slice``, ``compact``, ``set``, ``reload``: act on the running governor.

They go through its admin API, so that what is done here is in its log, and seen by whoever watches the dashboard.
"""

from __future__ import annotations

from typing import Annotated

import httpx
import msgspec
import typer
from rich.markup import escape

from governor import instance
from governor.acts import (
    ACTIONS_PATH,
    CLIENT_HEADER,
    Act,
    Acted,
    CancelTurn,
    CompactNow,
    PauseAgent,
    ReloadPolicies,
    ResumeAgent,
    SetPolicy,
    SliceTurn,
)
from governor.cli.console import Exit, fail, out, print_json, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status import ask, the_running
from governor.clock import SystemClock
from governor.files import read_text
from governor.identity.agents import AgentBook
from governor.instance import RunNote
from governor.names import policy_path
from governor.policy.edit import Value, set_key, unset_key, value_of
from governor.policy.loader import load_shipped, shipped_folder
from governor.settings import Home
from governor.snapshot import Snapshot
from governor.visible import LONGEST_NAME, visible

_ANSWER_S = 15.0
"""A policy file that another program edits is waited for up to 10 s."""
_NAMED = 5
"""Turns that an error names."""

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.", show_default=False)]
TurnArgument = Annotated[
    str,
    typer.Argument(
        metavar="TURN", help="An open turn's id, or how it begins if only one does; 'governor queue' shows them.",
        show_default=False,
    ),
]  # fmt: skip


def pause(
    home: HomeOption,
    agent: AgentArgument,
    running: Annotated[
        bool, typer.Option("--running", help="Pause answers that have begun, too, where they can be continued.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Let an agent's turns wait until 'governor resume'. What runs goes on. Outlasts a restart of the governor."""
    with told_errors():
        _print(post(the_running(home), PauseAgent(agent=agent, running=running)), as_json)


def resume(home: HomeOption, agent: AgentArgument, as_json: JsonOption = False) -> None:
    """Let a paused agent's turns run again."""
    with told_errors():
        _print(post(the_running(home), ResumeAgent(agent=agent)), as_json)


def cancel(home: HomeOption, turn: TurnArgument, as_json: JsonOption = False) -> None:
    """End a turn now, whether it waits or runs. Its client gets an error that says so."""
    with told_errors():
        note = the_running(home)
        _print(post(note, CancelTurn(turn=_open_turn(note, turn))), as_json)


def slice_turn(home: HomeOption, turn: TurnArgument, as_json: JsonOption = False) -> None:
    """Have a running turn pause where it is, so that those that wait go first. It goes on from there by itself."""
    with told_errors():
        note = the_running(home)
        _print(post(note, SliceTurn(turn=_open_turn(note, turn))), as_json)


def compact(home: HomeOption, agent: AgentArgument, as_json: JsonOption = False) -> None:
    """Have an agent's next prompt made shorter, however far it is from its trigger."""
    with told_errors():
        _print(post(the_running(home), CompactNow(agent=agent)), as_json)


def reload(home: HomeOption, as_json: JsonOption = False) -> None:
    """Have all policy files read now. The governor sees a change by itself within 2 s."""
    with told_errors():
        _print(post(the_running(home), ReloadPolicies()), as_json)


def set_value(
    home: HomeOption,
    agent: AgentArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="As in output.final.", show_default=False)],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="TOML, or plain text.", show_default=False)
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Take the key out; the policy under it decides.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Change one key of an agent's policy file and keep its comments. Checked first; in force at once.

    \b
    governor set hermes-main output.final 8192
    governor set nightly class background
    governor set nightly share.ceiling_tokens --unset
    """
    with told_errors():
        if (value is None) != unset:
            fail("give either a VALUE or --unset", Exit.USAGE)
        chosen = None if value is None else value_of(value)
        note = instance.running_instance(home)
        if note is not None:
            _print(post(note, SetPolicy(agent=agent, key=key, value=chosen)), as_json)
        else:
            _print(_set_on_file(home, agent, key, chosen), as_json)


def post(note: RunNote, act: Act) -> Acted:
    """Have the running governor do it, or the end of the command with its reason."""
    headers = {
        "authorization": f"Bearer {note.admin_token}",
        "content-type": "application/json",
        CLIENT_HEADER: "cli",
    }
    url, body = note.url + ACTIONS_PATH + act.name, msgspec.json.encode(act)
    try:
        answer = httpx.post(url, content=body, headers=headers, timeout=_ANSWER_S, trust_env=False)
    except httpx.HTTPError as error:
        fail(f"the governor (pid {note.pid}) does not answer at {note.url}: {type(error).__name__}", Exit.NOT_READY)
    if answer.status_code == httpx.codes.OK:
        return msgspec.json.decode(answer.content, type=Acted)
    code = Exit.USAGE if answer.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND} else Exit.FAILED
    try:
        reason = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = f"the governor answered {answer.status_code} to {act.name}"
    fail(reason, code)


def _print(acted: Acted, as_json: bool) -> None:
    if as_json:
        print_json(acted)
    else:
        out.print(escape(acted.detail))


def _open_turn(note: RunNote, wanted: str) -> str:
    """The only open turn that is meant, or the end of the command."""
    turns = msgspec.json.decode(ask(note, "/governor/state"), type=Snapshot).turns
    found = [turn.turn_id for turn in turns if wanted and turn.turn_id.startswith(wanted)]
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else found[0]
    shown_wanted = visible(wanted, LONGEST_NAME)
    if found:
        more = ", ..." if len(found) > _NAMED else ""
        fail(f"several open turns begin with '{shown_wanted}': {', '.join(found[:_NAMED])}{more}", Exit.USAGE)
    named = ", ".join(f"{turn.turn_id} ({turn.agent})" for turn in turns[:_NAMED])
    fail(f"no turn '{shown_wanted}' is open; {f'open are {named}' if named else 'none is'}", Exit.USAGE)


def _set_on_file(home: Home, agent: str, key: str, value: Value | None) -> Acted:
    """Without a governor. Raises :class:`~governor.errors.ConfigError`."""
    book = AgentBook(home.agents, SystemClock())
    book.load()
    path = policy_path(home.policies, agent)
    before = read_text(path)
    if book.get(agent) is None and before is None:
        fail(f"there is no agent {agent!r}; 'governor agent list' shows them", Exit.USAGE)
    shipped = load_shipped(shipped_folder())
    if value is None:
        unset_key(path, key, shipped)
    else:
        set_key(path, key, value, shipped)
    changed = read_text(path) != before
    detail = f"{path} is written; no governor runs" if changed else f"{path} says so already"
    return Acted(action=SetPolicy.name, target=agent, changed=changed, detail=detail)

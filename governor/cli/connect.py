"""``governor connect``: point Hermes, OpenClaw or a script at the governor."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from governor.cli.agents import NameArgument, YesOption, confirm, make_agent, policy_of, starting_text
from governor.cli.console import Exit, err, fail, out, told_errors
from governor.cli.options import HomeOption
from governor.cli.served import served
from governor.clock import SystemClock
from governor.connect import files, sdk
from governor.connect.difference import unified
from governor.connect.hermes import HermesConfig
from governor.connect.model import ClientConfig, Connection
from governor.connect.openclaw import OpenClawConfig
from governor.connect.secrets import masked
from governor.errors import GovernorError
from governor.identity.agents import AgentBook, ClientKind
from governor.names import agent_name
from governor.settings import Home, Secret

app = typer.Typer(no_args_is_help=True, help="Point a client at the governor: Hermes, OpenClaw or a script.")

_NOT_YET_MADE = "gov-" + "0" * 43
"""Stands for a key that is only made once the change has been agreed to."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The client's file, if it is somewhere else.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="The agent's key, if it has one already.")]
NewKeyOption = Annotated[bool, typer.Option("--new-key", help="Make a new key; the old one is refused from then on.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Model to use; the first one served, if not given.")]
WindowOption = Annotated[
    int | None, typer.Option("--window", help="Context window in tokens, if nobody else knows.", min=1024)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    home: Home
    agent: str
    client: ClientKind
    key: str | None
    new_key: bool
    model: str | None
    window_tokens: int | None


class KeyPlan(msgspec.Struct, frozen=True):
    """The key to write: one that is known, or one still to be made."""

    key: Secret
    makes_agent: bool = False
    makes_key: bool = False


@app.command()
def hermes(
    home: HomeOption,
    name: NameArgument,
    config: ConfigOption = None,
    key: KeyOption = None,
    new_key: NewKeyOption = False,
    model: ModelOption = None,
    window: WindowOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Write the connection into Hermes' config.yaml; makes the agent if there is none.

    The file is $HERMES_HOME/config.yaml, else ~/.hermes/config.yaml. It is backed up first, and all other settings and
    comments stay.

    \b
    governor connect hermes hermes-main --dry-run
    HERMES_HOME=~/agents/work governor connect hermes hermes-work
    """
    path = config or Path(os.environ.get("HERMES_HOME") or "~/.hermes") / "config.yaml"
    wanted = _wanted(home, name, ClientKind.HERMES, key, new_key, model, window)
    with told_errors():
        _connect(wanted, path.expanduser(), HermesConfig(str(path)), dry_run, yes)


@app.command()
def openclaw(
    home: HomeOption,
    name: NameArgument,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="ID", help="OpenClaw's own id of the agent, if it has several.")
    ] = None,
    config: ConfigOption = None,
    key: KeyOption = None,
    new_key: NewKeyOption = False,
    model: ModelOption = None,
    window: WindowOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Write the connection into OpenClaw's openclaw.json; makes the agent if there is none.

    The file is $OPENCLAW_CONFIG_PATH, else ~/.openclaw/openclaw.json. It is backed up first, and all other settings,
    comments and the layout stay.

    \b
    governor connect openclaw claw-main --dry-run
    governor connect openclaw claw-work --agent work
    """
    path = config or Path(os.environ.get("OPENCLAW_CONFIG_PATH") or "~/.openclaw/openclaw.json")
    wanted = _wanted(home, name, ClientKind.OPENCLAW, key, new_key, model, window)
    with told_errors():
        _connect(wanted, path.expanduser(), OpenClawConfig(str(path), agent), dry_run, yes)


@app.command("sdk")
def for_sdk(
    home: HomeOption,
    name: NameArgument,
    key: KeyOption = None,
    new_key: NewKeyOption = False,
    model: ModelOption = None,
) -> None:
    """Print variables and a snippet for the OpenAI SDK; makes the agent if there is none.

    \b
    governor connect sdk nightly
    """
    wanted = _wanted(home, name, ClientKind.OTHER, key, new_key, model, None)
    with told_errors():
        plan = _key_plan(wanted, None)
        connection = _connection(wanted, plan)
        connection = msgspec.structs.replace(connection, key=_made(wanted, plan))
        typer.echo(sdk.environment(connection))
        typer.echo(sdk.snippet(connection), nl=False)


def _wanted(
    home: Home, name: str, client: ClientKind, key: str | None, new_key: bool, model: str | None, window: int | None
) -> Wanted:
    if key is not None and new_key:
        fail("--key and --new-key exclude each other", Exit.USAGE)
    return Wanted(home=home, agent=name, client=client, key=key, new_key=new_key, model=model, window_tokens=window)


def _connect(wanted: Wanted, path: Path, config: ClientConfig, dry_run: bool, yes: bool) -> None:
    """Plan, show, ask; only then make the key and write."""
    before = files.read(path)
    plan = _key_plan(wanted, config.present_key(before, wanted.agent))
    connection = _connection(wanted, plan)
    planned = config.connected(before, connection)
    for note in planned.notes:
        err.print(f"[yellow]note:[/] {escape(note)}")
    if planned.text == before:
        out.print(f"nothing to change in {escape(str(path))}")
        return
    typer.echo(_shown_change(config, path, before, planned.text, connection.key))
    if plan.makes_agent:
        out.print(f"[dim]makes the agent {escape(wanted.agent)} with a key and a policy file[/]")
    elif plan.makes_key:
        out.print(f"[dim]makes a new key for {escape(wanted.agent)}; the old one is refused from then on[/]")
    if dry_run:
        out.print("dry run: nothing has been written")
        return
    confirm(f"Write this to {path}?", yes)
    files.ensure_folder(path)
    kept = files.back_up(path, before, time.time()) if before else None
    key = _made(wanted, plan)
    try:
        after = config.connected(before, msgspec.structs.replace(connection, key=key)).text
        files.replace(path, before, after)
    except GovernorError as error:
        again = " The new key was made all the same: run again with --new-key." if plan.makes_key else ""
        fail(f"{error}.{again}", Exit.USAGE)
    out.print(f"written: {escape(str(path))}" + (f" (before: {escape(kept.name)})" if kept else ""))
    if files.is_open_to_others(path):
        err.print(f"[yellow]note:[/] it has a key in it and other users can read it: chmod 600 {escape(str(path))}")


def _key_plan(wanted: Wanted, present: str | None) -> KeyPlan:
    """Which key to write. Ends the command if the agent's key is needed and nobody has it."""
    name = agent_name(wanted.agent)
    book = AgentBook(wanted.home.agents, SystemClock())
    book.load()
    if wanted.key is not None:
        if book.authenticate(wanted.key) != name:
            fail(f"--key is not the key of {name}; 'governor agent list' shows the agents", Exit.USAGE)
        return KeyPlan(Secret(wanted.key))
    if book.get(name) is None:
        return KeyPlan(Secret(_NOT_YET_MADE), makes_agent=True, makes_key=True)
    if wanted.new_key:
        return KeyPlan(Secret(_NOT_YET_MADE), makes_key=True)
    if present is not None and book.authenticate(_expanded(present, os.environ)) == name:
        return KeyPlan(Secret(present))
    fail(
        f"{name} has a key already, and only its hash is kept. Give it with --key, or make a new one with --new-key "
        "(the old one is refused from then on).",
        Exit.USAGE,
    )


def _made(wanted: Wanted, plan: KeyPlan) -> Secret:
    """The key itself, made now if it is to be made."""
    if plan.makes_agent:
        return make_agent(wanted.home, wanted.agent, wanted.client, starting_text(wanted.client))
    if plan.makes_key:
        book = AgentBook(wanted.home.agents, SystemClock())
        book.load()
        return book.rotate(wanted.agent)
    return plan.key


def _connection(wanted: Wanted, plan: KeyPlan) -> Connection:
    """Everything the client is to be told. Ends the command if no model is known."""
    now = served(wanted.home)
    policy = policy_of(wanted.home, wanted.agent, starting_text(wanted.client))
    model = wanted.model or now.model_for(policy)
    if model is None:
        why = "its engine is not ready yet" if now.running else "no governor runs; start one with 'governor up'"
        fail(f"the model's name is not known: {why}, or name it with --model", Exit.NOT_RUNNING)
    return Connection(
        agent=wanted.agent,
        base_url=now.base_url,
        key=plan.key,
        model=model,
        window_tokens=wanted.window_tokens or now.window_for(policy),
        output_tokens=policy.output.tool_step,
    )


def _shown_change(config: ClientConfig, path: Path, before: str, after: str, key: Secret) -> str:
    new_key = None if key.reveal() in before else key.reveal()
    secrets = config.secrets(before)
    return unified(masked(before, secrets), masked(after, secrets, new_key), str(path))


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Both clients take ``${VARIABLE}`` in place of a key."""
    return _VARIABLE.sub(lambda found: environ.get(found[1], found[0]), text)

"""``governor agent``: who may use the gateway, each with a key and a policy file."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from governor.cli.console import Exit, err, fail, out, print_json, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.cli.served import Served, served
from governor.clock import SystemClock
from governor.connect import sdk
from governor.connect.hermes import HermesConfig
from governor.connect.model import Connection
from governor.connect.openclaw import OpenClawConfig
from governor.errors import BadRequest, ConfigError
from governor.files import read_text, write_atomic
from governor.identity.agents import Agent, AgentBook, ClientKind
from governor.names import agent_name, policy_path
from governor.policy.edit import starter
from governor.policy.loader import load_shipped, read_agent, shipped_folder
from governor.policy.model import Policy
from governor.policy.resolve import parse, resolve_agent
from governor.settings import Home, Secret

NAME_OF_MODEL = "NAME-OF-THE-MODEL"
"""Stands in configuration that is shown while nobody knows what the engine serves."""

app = typer.Typer(no_args_is_help=True, help="Agents: who may use the gateway, each with a key and a policy file.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class Base(StrEnum):
    """Shipped policies to stand on."""

    HERMES = "hermes"
    OPENCLAW = "openclaw"
    INTERACTIVE = "interactive"
    BACKGROUND = "background"


@app.command()
def add(
    home: HomeOption,
    name: NameArgument,
    policy: Annotated[Path | None, typer.Option("--policy", help="Policy file to copy; checked first.")] = None,
    base: Annotated[Base | None, typer.Option("--base", help="Shipped policy to stand on.")] = None,
    client: Annotated[
        ClientKind | None, typer.Option("--client", help="Which program the agent is; follows from --base.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an agent: a key, shown this once, and a policy file. Prints configuration to paste.

    \b
    governor agent add hermes-main --base hermes
    governor agent add nightly --base background
    governor agent add mine --policy ./mine.toml
    """
    with told_errors():
        if policy is not None and base is not None:
            fail("--policy has its own base; leave --base out", Exit.USAGE)
        kind = client or client_of(base)
        if policy is not None:
            text = _policy_text(policy)
        else:
            text = starting_text(kind) if base is None else starter(base.value)
        key = make_agent(home, name, kind, text, replaces=policy is not None)
        now = served(home)
        in_force = policy_of(home, name)
        connection = _connection(name, key, now, in_force)
        if as_json:
            print_json(_added(home, connection, now, in_force))
        else:
            _print_added(home, connection, kind, now)


@app.command("list")
def list_agents(home: HomeOption, as_json: JsonOption = False) -> None:
    """Show all agents."""
    with told_errors():
        agents = _book(home).agents()
        rows = [_row(home, agent) for agent in agents]
        if as_json:
            print_json(rows)
            return
        if not rows:
            out.print("no agents yet; 'governor agent add NAME' makes one")
            return
        table = Table("agent", "client", "created", "base", "policy file", box=None)
        for row in rows:
            created = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created_at"]))
            policy = row["problem"] or row["policy_file"] or "- (the default policy)"
            table.add_row(*map(escape, (row["name"], row["client"], created, row["base"] or "-", policy)))
        out.print(table)


@app.command()
def rotate(home: HomeOption, name: NameArgument, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Make a new key for an agent. The old one is refused from this moment on."""
    with told_errors():
        _known(home, name)
        confirm(f"The present key of {name} stops working at once. Go on?", yes)
        key = _book(home).rotate(name)
        if as_json:
            print_json({"agent": name, "key": key.reveal()})
            return
        err.print("The new key, shown this once:")
        out.print(key.reveal(), markup=False)
        err.print(f"[dim]'governor connect hermes {name} --key KEY' (or openclaw) writes it into the client's file.[/]")


@app.command()
def remove(home: HomeOption, name: NameArgument, yes: YesOption = False) -> None:
    """Take an agent's key away. Its policy file and its turns in the log stay."""
    with told_errors():
        _known(home, name)
        confirm(f"{name} is refused from now on. Go on?", yes)
        _book(home).remove(name)
        path = policy_path(home.policies, name)
        out.print(f"removed {name}" + (f"; its policy stays in {escape(str(path))}" if path.exists() else ""))


def make_agent(home: Home, name: str, client: ClientKind, policy_text: str, *, replaces: bool = False) -> Secret:
    """A new agent, its policy file first, so that it never runs without its limits. A policy file left by an earlier
    agent of that name stays in force; with ``replaces`` it is an error instead.

    Raises :class:`BadRequest` and :class:`ConfigError`.
    """
    book = _book(home)
    if book.get(agent_name(name)) is not None:
        raise BadRequest(f"There is already an agent {name!r}; 'governor agent rotate {name}' makes it a new key.")
    path = policy_path(home.policies, name)
    present = read_text(path)
    if present is None:
        write_atomic(path, policy_text)
    elif replaces and present != policy_text:
        raise ConfigError("is there already; edit or remove it, or leave --policy out", file=str(path))
    else:
        policy_of(home, name)
        err.print(f"[yellow]note:[/] {escape(str(path))} is there already and stays in force")
    return book.add(name, client)


def policy_of(home: Home, name: str, starting_text: str | None = None) -> Policy:
    """The policy of an agent: of its file, else of ``starting_text``, else the default. Raises :class:`ConfigError`."""
    shipped = load_shipped(shipped_folder())
    path = policy_path(home.policies, name)
    own = read_agent(path, shipped)
    if own is None:
        own = resolve_agent(None if starting_text is None else parse(starting_text, str(path)), shipped)
    return own.policy


def starting_text(kind: ClientKind) -> str:
    """The policy file that a client's new agent begins with."""
    return starter(None if kind is ClientKind.OTHER else kind.value)


def client_of(base: Base | None) -> ClientKind:
    """The client that a shipped policy is for."""
    return ClientKind(base.value) if base in {Base.HERMES, Base.OPENCLAW} else ClientKind.OTHER


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; without one there is nobody to ask, and the command itself is the answer. Ends the command
    unless the answer is yes."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        fail("nothing has been changed", Exit.FAILED)


def _policy_text(path: Path) -> str:
    text = read_text(path)
    if text is None:
        raise ConfigError("there is no such file", file=str(path))
    resolve_agent(parse(text, str(path)), load_shipped(shipped_folder()))
    return text


def _book(home: Home) -> AgentBook:
    book = AgentBook(home.agents, SystemClock())
    book.load()
    return book


def _known(home: Home, name: str) -> None:
    if _book(home).get(name) is None:
        fail(f"there is no agent {name[:80]!r}; 'governor agent list' shows them", Exit.USAGE)


def _row(home: Home, agent: Agent) -> dict[str, Any]:
    path = policy_path(home.policies, agent.name)
    base, problem = None, None
    try:
        base = policy_of(home, agent.name).base
    except ConfigError as error:
        problem = str(error)
    return {
        "name": agent.name,
        "client": agent.client.value,
        "created_at": agent.created_at,
        "base": base,
        "policy_file": str(path) if path.exists() else None,
        "problem": problem,
    }


def _connection(name: str, key: Secret, now: Served, policy: Policy) -> Connection:
    return Connection(
        agent=name,
        base_url=now.base_url,
        key=key,
        model=now.model_for(policy) or NAME_OF_MODEL,
        window_tokens=now.window_for(policy),
        output_tokens=policy.output.tool_step,
    )


def _added(home: Home, connection: Connection, now: Served, policy: Policy) -> dict[str, Any]:
    return {
        "agent": connection.agent,
        "key": connection.key.reveal(),
        "base_url": connection.base_url,
        "running": now.running,
        "model": now.model_for(policy),
        "window_tokens": connection.window_tokens,
        "policy_file": str(policy_path(home.policies, connection.agent)),
        "hermes_yaml": HermesConfig("config.yaml").connected("", connection).text,
        "openclaw_json": OpenClawConfig("openclaw.json").connected("", connection).text,
        "environment": sdk.environment(connection),
    }


def _print_added(home: Home, connection: Connection, kind: ClientKind, now: Served) -> None:
    name = connection.agent
    out.print(f"agent [bold]{name}[/], policy {escape(str(policy_path(home.policies, name)))}")
    out.print(f"key   [bold]{connection.key.reveal()}[/]   (shown this once)\n")
    if connection.model == NAME_OF_MODEL:
        why = "the engine is not ready yet" if now.running else "no governor runs"
        err.print(f"[yellow]note:[/] {why}, so put the model's name for {NAME_OF_MODEL} below\n")
    hermes = HermesConfig("config.yaml").connected("", connection)
    openclaw = OpenClawConfig("openclaw.json").connected("", connection)
    if kind is not ClientKind.OPENCLAW:
        _print_section(f"Hermes, ~/.hermes/config.yaml (or: governor connect hermes {name} --key KEY)", hermes.text)
    if kind is not ClientKind.HERMES:
        title = f"OpenClaw, ~/.openclaw/openclaw.json (or: governor connect openclaw {name} --key KEY)"
        _print_section(title, openclaw.text)
    _print_section("OpenAI SDK and whatever reads its variables", sdk.environment(connection))


def _print_section(title: str, text: str) -> None:
    out.print(f"[dim]# {escape(title)}[/]")
    typer.echo(text)

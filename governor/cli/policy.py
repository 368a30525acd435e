"""``governor policy``: check files, and show what is in force and where each value comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from governor.cli.console import Exit, fail, out, plain_table, print_json, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.clock import SystemClock
from governor.errors import ConfigError
from governor.identity.agents import AgentBook
from governor.names import policy_path
from governor.policy.loader import load_shipped, read_agent, shipped_folder
from governor.policy.model import as_tree
from governor.policy.resolve import Resolved, resolve_agent

app = typer.Typer(no_args_is_help=True, help="Check and show policy files, one TOML file an agent.")


@app.command()
def check(
    home: HomeOption,
    files: Annotated[list[Path] | None, typer.Argument(help="Files to check; all of the home's, if none.")] = None,
) -> None:
    """Check policy files without a running governor. Exit code 2 if one is bad.

    \b
    governor policy check
    governor policy check ./hermes-main.toml
    """
    with told_errors():
        shipped = load_shipped(shipped_folder())
        chosen = files or sorted(home.policies.glob("*.toml"))
        bad = 0
        for path in chosen:
            try:
                if read_agent(path, shipped) is None:
                    raise ConfigError("there is no such file", file=str(path))
                out.print(f"[green]ok[/]   {escape(str(path))}")
            except ConfigError as error:
                bad += 1
                out.print(f"[red]bad[/]  {escape(str(error))}")
        if not chosen:
            out.print(f"no policy files in {home.policies}; every agent has the default policy")
        if bad:
            raise SystemExit(int(Exit.USAGE))


@app.command()
def show(
    home: HomeOption,
    agent: Annotated[str, typer.Argument(help="Name of the agent.")],
    as_json: JsonOption = False,
) -> None:
    """Print an agent's policy as it is in force, with the file and line each value comes from."""
    with told_errors():
        book = AgentBook(home.agents, SystemClock())
        book.load()
        path = policy_path(home.policies, agent)
        if book.get(agent) is None and not path.exists():
            fail(f"there is no agent {agent!r}; 'governor agent list' shows them", Exit.USAGE)
        shipped = load_shipped(shipped_folder())
        resolved = read_agent(path, shipped) or resolve_agent(None, shipped)
        if as_json:
            sources = {key: str(source) for key, source in resolved.sources.items()}
            print_json({"agent": agent, "policy": as_tree(resolved.policy), "sources": sources})
        else:
            out.print(_table(resolved))


def _table(resolved: Resolved) -> Table:
    table = plain_table("key", "value", "from")
    for key, source in sorted(resolved.sources.items()):
        value: object = as_tree(resolved.policy)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        text = "-" if value is None else msgspec.json.encode(value).decode()
        table.add_row(escape(key), escape(text), escape(str(source)))
    return table

"""``governor trace``: recording what agents asked from the turn log, and looking at a trace."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape

from governor.cli.console import Exit, err, fail, out, plain_table, print_json, shown, told_errors
from governor.cli.log import DatabaseOption, SinceOption, log_reader, since_time
from governor.cli.options import HomeOption, JsonOption
from governor.errors import BadRequest, ConfigError
from governor.names import policy_path
from governor.policy.loader import load_shipped, read_agent, shipped_folder
from governor.settings import Home
from governor.simulate.summary import AgentSummary, TraceSummary, summarised
from governor.simulate.table import duration
from governor.store.model import StoredTurn
from governor.trace.record import NothingToRecord, Recording, recorded
from governor.types import AgentName
from serve.errors import ServeError
from serve.twin.trace import Trace, read_trace, write_trace

SUFFIX: Final = ".trace"
DEFAULT_FILE: Final = Path("recorded" + SUFFIX)
_STDOUT: Final = Path("-")
_MOST_TURNS: Final = 1_000_000

app = typer.Typer(no_args_is_help=True, help="Traces: what agents asked, to be asked again of the engine's twin.")


@app.command()
def record(
    home: HomeOption,
    since: SinceOption = None,
    agents: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Only these agents, all of them if not given.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=f"Where to write it, - for here; {DEFAULT_FILE} by default."),
    ] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Number the agents in place of their names.")] = False,
    database: DatabaseOption = None,
) -> None:
    """Make a trace from the turn log: who asked when, what each prompt goes on from, how many tokens.

    Nothing of what was said is in it: the log does not hold that. Sessions are numbered.

    \b
    governor trace record --since 2h
    governor trace record --since 1d --agents hermes-main,mail --out day.trace
    """
    target = output or DEFAULT_FILE
    if output is None and target.exists():
        fail(f"{target} is there already; replace it with --out {target}", Exit.USAGE)
    wanted = None if agents is None else {name.strip() for name in agents.split(",") if name.strip()}
    with told_errors():
        rows = log_reader(home, database).recent(since=since_time(since), limit=_MOST_TURNS)
    rows.reverse()
    rows = [row for row in rows if wanted is None or row.agent in wanted]
    name = DEFAULT_FILE.stem if target == _STDOUT else target.stem
    try:
        made = recorded(rows, name=name, bases=_bases(home, rows), anonymous=anonymous)
    except NothingToRecord as error:
        fail(str(error), Exit.FAILED)
    content = write_trace(made.trace)
    if target == _STDOUT:
        sys.stdout.write(content.decode())
    else:
        _write(target, content)
    _tell(made, target, (wanted or set()) - {str(row.agent) for row in rows})


@app.command()
def show(
    trace: Annotated[str, typer.Argument(help="A trace's file, or the name of a shipped one: incident.")],
    as_json: JsonOption = False,
) -> None:
    """Show what is in a trace: its agents, turns and tokens, and what is not known of them."""
    found = summarised(load_trace(trace))
    if as_json:
        print_json(found)
    else:
        _print(found)


def shipped_traces() -> list[str]:
    """Names of the traces that come with the program."""
    folder = resources.files("governor.simulate").joinpath("traces")
    return sorted(each.name.removesuffix(SUFFIX) for each in folder.iterdir() if each.name.endswith(SUFFIX))


def load_trace(source: str) -> Trace:
    """A trace by the name of a shipped one or by path; ends the command if it cannot be read."""
    shipped = resources.files("governor.simulate").joinpath("traces", source + SUFFIX)
    try:
        if source in shipped_traces():
            return read_trace(shipped.read_bytes(), source)
        return read_trace(Path(source).read_bytes(), source)
    except OSError as error:
        known = ", ".join(shipped_traces())
        fail(f"{source}: {error.strerror}; give a trace's file or the name of a shipped one ({known})", Exit.USAGE)
    except ServeError as error:
        fail(error.message, Exit.USAGE)


def _bases(home: Home, rows: list[StoredTurn]) -> dict[AgentName, str | None]:
    """The shipped policies the agents' own stand on. A policy file that is wrong now was right once, and is passed by
    here: what is wrong with it is said by what reads it to obey it."""
    shipped = load_shipped(shipped_folder())
    bases: dict[AgentName, str | None] = {}
    for name in {row.agent for row in rows if row.agent is not None}:
        try:
            own = read_agent(policy_path(home.policies, name), shipped)
        except (BadRequest, ConfigError):
            continue
        bases[name] = None if own is None else own.policy.base
    return bases


def _write(target: Path, content: bytes) -> None:
    try:
        target.write_bytes(content)
    except OSError as error:
        fail(f"{target} cannot be written ({error.strerror}); give another --out", Exit.USAGE)


def _tell(made: Recording, target: Path, missing: set[str]) -> None:
    """On stderr, since the trace itself may be on stdout."""
    trace = made.trace
    counts = f"{made.turns:,} turns, {len(trace.agents)} agents, {len(trace.scripts)} sessions"
    err.print(f"{escape(str(target))}: {counts}")
    for name in sorted(missing):
        err.print(f"[yellow]note:[/] no turn of {escape(name)}")
    for why, count in made.left_out.items():
        err.print(f"[yellow]note:[/] left out: {count} {escape(why)}")
    for line in trace.header.unknown:
        err.print(f"[yellow]note:[/] {escape(line)}")


def _print(found: TraceSummary) -> None:
    out.print(f"[bold]{escape(found.name)}[/]  {escape(found.summary)}", soft_wrap=True)
    table = plain_table(
        "agent", "client", "sessions", "turns", "longest prompt", "written", "longest", "no cap", "thinks"
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for each in found.agents:
        table.add_row(
            escape(each.agent),
            each.client.value,
            _sessions(each),
            shown(each.turns),
            shown(each.longest_prompt_tokens),
            shown(each.output_tokens),
            shown(each.longest_output_tokens),
            shown(each.uncapped_turns),
            duration(each.think_s),
        )
    out.print(table)
    until = "" if found.until_s is None else f", watched for {duration(found.until_s)}"
    out.print(f"{found.turns:,} turns; the last moment in it is {duration(found.last_start_s)}{until}")
    for source in found.sources:
        out.print(f"from: {escape(source)}", soft_wrap=True)
    for what, why in found.calibration.items():
        out.print(f"chosen: {escape(what)}: {escape(why)}", soft_wrap=True)
    for line in found.unknown:
        out.print(f"[yellow]not known:[/] {escape(line)}", soft_wrap=True)


def _sessions(agent: AgentSummary) -> str:
    return f"{agent.sessions}" if not agent.generators else f"{agent.sessions} + {agent.generators} drawn"

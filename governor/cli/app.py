"""The command line: which commands there are, and their help."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from governor.cli import (
    act,
    agents,
    bench,
    canary,
    chat,
    compactions,
    connect,
    context,
    demo,
    doctor,
    engine_cmd,
    explain,
    log,
    patch,
    plan,
    policy,
    queue_cmd,
    recall,
    replay,
    status,
    top,
    trace,
    twin_cmd,
    up,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Govern the agents on one LLM engine: caps, records and shows every turn.",
)
app.command()(up.up)
app.command()(status.status)
app.command()(status.stop)
app.command()(top.top)
app.command()(demo.demo)
app.command()(chat.chat)
app.command()(log.log)
app.command()(log.usage)
app.command()(queue_cmd.queue)
app.command()(explain.explain)
app.command()(context.context)
app.command()(compactions.compactions)
app.command()(recall.recall)
app.command()(act.pause)
app.command()(act.resume)
app.command()(act.cancel)
app.command("slice")(act.slice_turn)
app.command()(act.compact)
app.command("set")(act.set_value)
app.command()(act.reload)
app.command()(plan.plan)
app.command()(doctor.doctor)
app.command()(canary.canary)
app.add_typer(policy.app, name="policy")
app.add_typer(agents.app, name="agent")
app.add_typer(connect.app, name="connect")
app.add_typer(engine_cmd.app, name="engine")
app.add_typer(patch.app, name="patch")
app.command()(replay.replay)
app.add_typer(trace.app, name="trace")
app.add_typer(twin_cmd.app, name="twin")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"governor {version('agent-governor')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options before a command."""

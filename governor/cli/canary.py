"""``governor canary``: prove on the running engine that each cache tier gives back what was put in."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated

import typer
from rich.markup import escape

from governor.canary_note import write_canary
from governor.cli.console import Exit, err, fail, milliseconds, out, plain_table, print_json, shown, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status import the_running, wait_until_ready
from governor.errors import UpstreamError
from governor.instance import RunNote
from governor.settings import Secret
from governor.snapshot import CanaryTierView, CanaryView
from serve.canary import NoRoom, Report, Verdict, run_canary
from serve.canary.http import SglangCanary
from serve.canary.model import Row, Stage

_COLOURS = {Verdict.SERVED: "green", Verdict.EMPTY: "bold red", Verdict.WRONG: "bold red", Verdict.SKIPPED: "yellow"}


def canary(
    home: HomeOption,
    url: Annotated[str | None, typer.Option(help="SGLang to prove; the running governor's, if not given.")] = None,
    key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the engine's API key.")
    ] = "GOVERNOR_UPSTREAM_KEY",
    quick: Annotated[bool, typer.Option("--quick", help="Only continuations, and only the cheapest flood.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask the engine the same prompts cold, from L1, pushed out to L2 and flushed to L3, and compare the answers.

    What agents have in L1 and L2 is pushed out and flushed: their next turns are prefills, or come from L3.

    \b
    Exit code: 0 each tier there is serves, 1 one returns nothing or wrong output, 6 the engine fails.
    governor canary
    governor canary --url http://127.0.0.1:30000 --quick
    """
    with told_errors():
        engine_url = url or _engine_of(the_running(home))
    key = os.environ.get(key_env)
    try:
        report = asyncio.run(_run(engine_url, Secret(key) if key else None, quick))
    except UpstreamError as error:
        fail(error.message, Exit.ENGINE)
    except NoRoom as error:
        fail(f"the engine's cache is too small to be proven: {error}", Exit.ENGINE)
    if url is None:
        with told_errors():
            write_canary(home, _found(report))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report.passed:
        raise SystemExit(int(Exit.FAILED))


def _engine_of(note: RunNote) -> str:
    """Where the running governor's engine is, once it answers."""
    if note.engine_url is None:
        fail("the running governor does not say where its engine is; give --url", Exit.USAGE)
    wait_until_ready(note)
    return note.engine_url


async def _run(url: str, key: Secret | None, quick: bool) -> Report:
    engine = SglangCanary(url, key=key)
    try:
        return await run_canary(engine, quick=quick, on_step=lambda step: err.print(f"[dim]{escape(step)}[/]"))
    finally:
        await engine.aclose()


def _found(report: Report) -> CanaryView:
    """For the running governor to show."""
    return CanaryView(
        at=time.time(),
        passed=report.passed,
        engine_version=report.facts.version,
        model=report.facts.model,
        tiers=tuple(
            CanaryTierView(tier=each.tier.value, verdict=each.verdict.value, reason=each.reason)
            for each in report.tiers
        ),
        problems=report.problems,
    )


def _print(report: Report) -> None:
    facts = report.facts
    out.print(
        f"SGLang {escape(facts.version)}, {escape(facts.model)}: pages of {facts.page_tokens}, "
        f"checkpoints {facts.checkpoints}, L1 {facts.device_tokens:,} tokens"
    )
    table = plain_table(
        "tier", "shape", "prompt", "served by", "expected", "first token", "max |dlogprob|", "to", "verdict"
    )
    for row in report.rows:
        is_reference = row.stage is Stage.COLD and row.verdict is Verdict.SERVED
        table.add_row(*_cells(row), "reference" if is_reference else f"[{_COLOURS[row.verdict]}]{row.verdict}[/]")
    out.print(table)
    out.print()
    for tier in report.tiers:
        out.print(f"{tier.tier} [{_COLOURS[tier.verdict]}]{tier.verdict}[/] {escape(tier.reason)}", soft_wrap=True)
        if tier.switch_off:
            out.print(f"   to run without it: {escape(tier.switch_off)}", soft_wrap=True)
    for problem in report.problems:
        out.print(f"[bold red]problem:[/] {escape(problem)}", soft_wrap=True)
    for note in report.notes:
        out.print(f"[dim]note: {escape(note)}[/]", soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.stage,
        row.shape,
        shown(row.prompt_tokens),
        str(row.served or "-"),
        shown(row.expected_tokens),
        milliseconds(row.ttft_ms),
        "-" if row.max_dlogprob is None else f"{row.max_dlogprob:.4f}",
        row.against or "-",
    )

"""``governor status`` and ``governor stop``."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import httpx
import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from governor import instance
from governor.cli.console import Exit, err, fail, milliseconds, out, plain_table, print_json, shown, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.instance import RunNote
from governor.settings import Home
from governor.snapshot import AgentView, Snapshot, TurnView
from governor.types import TurnState

_ASK_S = 5.0
_STOP_POLL_S = 0.1
_READY_POLL_S = 0.3


class _Reason(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Reason


def the_running(home: Home) -> RunNote:
    """The running governor's note, or the end of the command."""
    note = instance.running_instance(home)
    if note is None:
        fail("no governor runs from this home; start one with 'governor up'", Exit.NOT_RUNNING)
    return note


def ask(note: RunNote, path: str) -> bytes:
    """GET a page of the running governor with its admin token, or the end of the command."""
    headers = {"authorization": f"Bearer {note.admin_token}"}
    try:
        answer = httpx.get(note.url + path, headers=headers, timeout=_ASK_S, trust_env=False)
    except httpx.HTTPError as error:
        fail(f"the governor (pid {note.pid}) does not answer at {note.url}: {type(error).__name__}", Exit.NOT_READY)
    if answer.status_code != httpx.codes.OK:
        fail(_refusal(answer, path), Exit.USAGE if answer.is_client_error else Exit.FAILED)
    return answer.content


def _refusal(answer: httpx.Response, path: str) -> str:
    """In the governor's own words, where it found any."""
    try:
        said = msgspec.json.decode(answer.content, type=_Refusal).error.message
    except msgspec.MsgspecError:
        said = ""
    return said or f"the governor answered {answer.status_code} to {path}"


def wait_until_ready(note: RunNote) -> None:
    """Wait, telling why, while the running governor's engine comes; the end of the command when it is down.

    Has no limit of its own: the supervisor has one for each start, and for the number of starts.
    """
    told = ""
    while True:
        engine = msgspec.json.decode(ask(note, "/governor/state"), type=Snapshot).engine
        if engine.mode == "ready":
            return
        if engine.mode == "down":
            fail(f"the engine is down: {engine.detail}", Exit.ENGINE)
        if engine.detail != told:
            told = engine.detail
            err.print(f"[dim]waiting for the engine: {escape(told)}[/]")
        time.sleep(_READY_POLL_S)


def status(home: HomeOption, as_json: JsonOption = False) -> None:
    """Show the running governor: engine, agents, open turns. Exit code 3: not running, 4: engine not ready."""
    with told_errors():
        note = the_running(home)
        raw = ask(note, "/governor/state")
        snapshot = msgspec.json.decode(raw, type=Snapshot)
        if as_json:
            print_json(msgspec.Raw(raw))
        else:
            _print(note, snapshot)
        if snapshot.engine.mode != "ready":
            raise SystemExit(int(Exit.NOT_READY))


def _print(note: RunNote, snapshot: Snapshot) -> None:
    engine = snapshot.engine
    colour = "green" if engine.mode == "ready" else "red"
    up_s = snapshot.now - snapshot.started_at
    out.print(f"governor {snapshot.version} at {note.url}/v1, pid {note.pid}, up {up_s / 60:.0f} min")
    out.print(
        f"engine   {escape(engine.name)} [{colour}]{escape(engine.mode)}[/] {escape(engine.detail)}"
        f"  models {escape(', '.join(engine.models)) or '-'}"
        f"  window {shown(engine.window_tokens)}  slots {shown(engine.slots)}"
    )
    store = snapshot.store
    if store.ok and not store.dropped:
        out.print(f"log      ok, {store.pending} pending")
    else:
        out.print(f"log      [red]{store.pending} pending, {store.dropped} dropped[/] {escape(store.last_error or '')}")
    for alert in snapshot.alerts:
        out.print(f"[yellow]alert[/]    {escape(alert)}")
    if snapshot.agents:
        out.print(_agents(snapshot.agents))
    if snapshot.turns:
        out.print(_turns(snapshot.turns, snapshot.now))


def _agents(agents: tuple[AgentView, ...]) -> Table:
    table = plain_table("agent", "runs", "waits", "turns", "failed", "prompt", "cached", "out", "first token")
    good = {TurnState.OK, TurnState.TRUNCATED}
    for agent in agents:
        failed = sum(count for state, count in agent.turns.items() if state not in good)
        figures = (agent.running, agent.waiting, sum(agent.turns.values()), failed)
        tokens = (agent.prompt_tokens, agent.cached_tokens, agent.completion_tokens)
        table.add_row(escape(agent.name), *map(shown, figures), *map(shown, tokens), milliseconds(agent.last_ttft_ms))
    return table


def _turns(turns: tuple[TurnView, ...], now: float) -> Table:
    table = plain_table("turn", "agent", "phase", "for", "prompt", "cap", "waits for")
    for turn in turns:
        table.add_row(
            turn.turn_id,
            escape(turn.agent),
            turn.phase,
            f"{now - turn.since:.0f} s",
            shown(turn.prompt_tokens),
            shown(turn.cap),
            escape(turn.waits_for or ""),
        )
    return table


def stop(
    home: HomeOption,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its end.", min=0)] = 30.0,
) -> None:
    """Ask the running governor to end: running turns get a moment, then the engine is stopped."""
    with told_errors():
        note = the_running(home)
        try:
            os.kill(note.pid, signal.SIGTERM)
        except ProcessLookupError:
            fail("the governor has just ended by itself", Exit.NOT_RUNNING)
        deadline = time.monotonic() + wait
        while instance.running_instance(home) is not None:
            if time.monotonic() > deadline:
                fail(f"it still runs after {wait:.0f} s (pid {note.pid})", Exit.FAILED)
            time.sleep(_STOP_POLL_S)
        out.print("stopped")

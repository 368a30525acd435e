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

from governor import instance
from governor.cli.console import Exit, err, fail, out, print_json, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status_screen import screen
from governor.instance import RunNote
from governor.settings import Home
from governor.snapshot import Snapshot

_ASK_S = 5.0
_STOP_POLL_S = 0.1
_READY_POLL_S = 0.3
_WIDEST = 140


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


def status(
    home: HomeOption,
    as_json: JsonOption = False,
    watch: Annotated[
        float | None, typer.Option(help="Again every so many seconds.", metavar="SECONDS", min=0.2)
    ] = None,
) -> None:
    """Show the running governor on one screen: engine, tiers, agents, queue, what was computed twice, alerts.

    Exit code 0: the engine is ready, 3: no governor runs, 4: the engine is not ready. Unknown figures are ``-``.

    \b
    governor status --watch 2
    governor status --json | jq .engine.mode
    """
    with told_errors():
        while True:
            note = the_running(home)
            raw = ask(note, "/governor/state")
            snapshot = msgspec.json.decode(raw, type=Snapshot)
            if as_json:
                print_json(msgspec.Raw(raw))
            else:
                _show(note, snapshot, clear=watch is not None)
            if watch is None:
                break
            try:
                time.sleep(watch)
            except KeyboardInterrupt:
                break
        if snapshot.engine.mode != "ready":
            raise SystemExit(int(Exit.NOT_READY))


def _show(note: RunNote, snapshot: Snapshot, *, clear: bool) -> None:
    height = out.height if out.is_terminal else None
    lines = screen(snapshot, where=f"{note.url}/v1 (pid {note.pid})", width=min(out.width, _WIDEST), height=height)
    if clear:
        out.clear()  # nothing where it is no terminal
    for line in lines:
        out.print(line, no_wrap=True, crop=False)


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

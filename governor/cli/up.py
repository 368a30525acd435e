"""``governor up``: its options. The work is in :mod:`governor.cli.running`, which takes half a second to load."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from governor import instance
from governor.cli.choices import EngineOptions, UpOptions
from governor.cli.console import Exit, fail, out, told_errors
from governor.cli.options import HomeOption, WithoutOption
from governor.settings import Home, Secret

DEFAULT_PORT = 8484
_DETACH_WAIT_S = 60.0


def up(
    home: HomeOption,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = DEFAULT_PORT,
    allow_host: Annotated[list[str] | None, typer.Option(help="A further name clients reach this machine by.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            "-p",
            help="Engine profile: a shipped one by name (governor engine profiles), a file, or twin:MACHINE.",
        ),
    ] = None,
    upstream: Annotated[str | None, typer.Option(help="Use this OpenAI-compatible server as the engine.")] = None,
    upstream_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the upstream's API key.")
    ] = "GOVERNOR_UPSTREAM_KEY",
    window: Annotated[
        int | None, typer.Option(help="Context window in tokens, if the engine does not tell it.", min=1024)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Weights, over the profile's: a folder for SGLang; FILE.gguf or hf:OWNER/REPO[:FILE]."),
    ] = None,
    context: Annotated[int | None, typer.Option(help="Context in tokens, over the profile's.", min=512)] = None,
    slots: Annotated[int | None, typer.Option(help="Turns the embedded engine decodes at once.", min=1, max=64)] = None,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter of an SGLang of yours, in place of the installed one.")
    ] = None,
    without: WithoutOption = None,
    speed: Annotated[
        float | None, typer.Option(help="Of a twin: how many of its seconds pass in one. 1 if not given.")
    ] = None,
    script: Annotated[Path | None, typer.Option(help="Of a twin: file of what it answers.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of a twin: another one gives other answers.")] = None,
    database: Annotated[
        str | None, typer.Option(help="Turn log, e.g. postgresql+psycopg://USER@HOST/DB. Default: SQLite in the home.")
    ] = None,
    loopback_agent: Annotated[
        str | None, typer.Option(help="Let requests without a key in, from this machine only, as this agent.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background once it listens.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log in detail.")] = False,
) -> None:
    """Start an engine and the gateway, and show every turn.

    \b
    governor up                                      the small embedded model, ready in seconds
    governor up --model ~/models/qwen.gguf --context 32768
    governor up --model hf:Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf
    governor up --profile rx7900xtx-tp2 --model ~/models/qwen-gptq
    governor up --profile rx7900xtx-tp2 --without l3 when 'governor canary' finds L3 broken
    governor up --upstream http://127.0.0.1:30000    an engine that runs already
    governor up --profile twin:rx7900xtx-tp2 --speed 60    a model of that engine, a minute in a second
    """
    key = os.environ.get(upstream_key_env)
    options = UpOptions(
        home=home,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        engine=EngineOptions(
            profile=profile,
            upstream=upstream,
            upstream_key=Secret(key) if upstream and key else None,
            window_tokens=window,
            model=model,
            context_tokens=context,
            slots=slots,
            python=python,
            without=tuple(without or ()),
            speed=speed,
            script=script,
            seed=seed,
        ),
        database=database,
        loopback_agent=loopback_agent,
        verbose=verbose,
    )
    with told_errors():
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if detach:
            _detach(home)
        else:
            from governor.cli.running import run_up  # noqa: PLC0415 - heavy, and other commands do not need it

            run_up(options)


def _detach(home: Home) -> None:
    """Start the same command in the background and wait until it listens."""
    if instance.running_instance(home) is not None:
        fail("a governor runs from this home already; see 'governor status'", Exit.ALREADY_RUNNING)
    home.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    log = home.logs / "up.log"
    with Path(os.devnull).open("rb") as nothing, log.open("ab") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "governor", *arguments],
            stdin=nothing,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    deadline = time.monotonic() + _DETACH_WAIT_S
    while time.monotonic() < deadline:
        note = instance.running_instance(home)
        if note is not None and note.pid == child.pid:
            out.print(f"governor listens on [bold]{note.url}/v1[/] (pid {note.pid}); its output is in {log}")
            return
        if child.poll() is not None:
            tail = log.read_text(errors="replace").strip().splitlines()[-5:]
            fail("it ended at once:\n" + "\n".join(tail), Exit.FAILED)
        time.sleep(0.1)
    fail(f"it does not listen after {_DETACH_WAIT_S:.0f} s; see {log}", Exit.NOT_READY)

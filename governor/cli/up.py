"""``governor up``: an engine, the gateway in front of it, and a line for every turn."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from governor import events, instance
from governor.cli.console import Exit, err, fail, milliseconds, out, shown, told_errors
from governor.cli.engine import EngineOptions, started_engine
from governor.cli.options import HomeOption
from governor.cli.owner import owner_key
from governor.gateway.server import bound_socket, check_bind
from governor.redact import RedactingFilter
from governor.runtime import Governor, RuntimeConfig
from governor.settings import Home, Secret
from governor.types import AgentName
from governor.wiring import assembled

DEFAULT_PORT = 8484
_LOG_BYTES = 5 * 1024 * 1024
_DETACH_WAIT_S = 60.0


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    home: Home
    host: str
    port: int
    hosts: tuple[str, ...]
    engine: EngineOptions
    database: str | None
    loopback_agent: str | None
    verbose: bool


def up(
    home: HomeOption,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = DEFAULT_PORT,
    allow_host: Annotated[list[str] | None, typer.Option(help="A further name clients reach this machine by.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Use this OpenAI-compatible server as the engine.")] = None,
    upstream_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the upstream's API key.")
    ] = "GOVERNOR_UPSTREAM_KEY",
    window: Annotated[
        int | None, typer.Option(help="Context window in tokens, if the engine does not tell it.", min=1024)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model for the embedded engine: FILE.gguf or hf:OWNER/REPO[:FILE].")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Context of the embedded engine in tokens.", min=512)] = None,
    slots: Annotated[int, typer.Option(help="Turns the embedded engine decodes at once.", min=1, max=64)] = 2,
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
    governor up --upstream http://127.0.0.1:30000    an engine that runs already
    """
    if upstream and (model or context):
        fail("--upstream has its own model; leave --model and --context out", Exit.USAGE)
    key = os.environ.get(upstream_key_env)
    options = UpOptions(
        home=home,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        engine=EngineOptions(
            upstream=upstream,
            upstream_key=Secret(key) if upstream and key else None,
            window_tokens=window,
            model=model,
            context_tokens=context,
            slots=slots,
        ),
        database=database,
        loopback_agent=loopback_agent,
        verbose=verbose,
    )
    with told_errors():
        if detach:
            _detach(home)
        else:
            asyncio.run(_up(options))


async def _up(options: UpOptions) -> None:
    check_bind(options.host, options.loopback_agent, options.hosts)
    home = options.home
    token = instance.new_admin_token()
    stop = asyncio.Event()
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with instance.only_instance(home):
        _log_to_file(home, options, token)
        _stop_on_signals(stop)
        key = owner_key(home)
        try:
            bound = bound_socket(options.host, options.port)
        except OSError as error:
            fail(f"cannot listen on {options.host}:{options.port}: {error.strerror}. Try --port 0.", Exit.FAILED)
        url = _url(options.host, bound.getsockname()[1])
        async with started_engine(options.engine, home) as engine:
            config = RuntimeConfig(
                hosts=options.hosts,
                window_tokens=options.engine.window_tokens,
                supervised=engine.supervised,
                loopback_agent=AgentName(options.loopback_agent) if options.loopback_agent else None,
            )
            started_at = time.time()
            with assembled(
                home, engine.target, token, config=config, database=options.database, counter=engine.counter
            ) as (governor, _):
                engine.set_listener(governor.watch.on_process)
                async with _shown(governor):
                    await governor.run(bound, stop, lambda: _on_listening(home, url, started_at, token, key))
        instance.remove_note(home)
        err.print("stopped")


def _on_listening(home: Home, url: str, started_at: float, token: Secret, key: Secret) -> None:
    instance.write_note(home, url, started_at, token)
    out.print(f"[bold]governor[/] listens on [bold]{url}/v1[/]")
    out.print(f"  export OPENAI_BASE_URL={url}/v1")
    out.print(f"  export OPENAI_API_KEY={key.reveal()}")
    out.print("  governor chat 'Hello!'              try it, in another terminal")
    out.print("  governor agent add NAME             a key and a policy file for an agent")
    out.print("  governor connect hermes NAME        or write it into Hermes (or openclaw)")


@asynccontextmanager
async def _shown(governor: Governor) -> AsyncIterator[None]:
    """While inside, what happens is printed, a line each."""

    async def show() -> None:
        with governor.events.follower(0) as follower:
            while (news := await follower.next(timeout_s=3600)) is not None:
                for numbered in news:
                    _print_event(numbered.event)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        await asyncio.gather(task)


def _print_event(event: events.AnyEvent) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    match event:
        case events.TurnEnded():
            usage = event.usage
            colour = {"ok": "green", "truncated": "yellow"}.get(event.state.value, "red")
            line = (
                f"{at} {escape(event.agent):<12} [{colour}]{event.state.value}[/] {event.kind or '-'}"
                f"  in {shown(usage.prompt_tokens)} ({shown(usage.cached_tokens)} cached)"
                f"  out {shown(usage.completion_tokens)}/{shown(event.cap_applied)}"
                f"  first {milliseconds(event.ttft_ms)}  all {milliseconds(event.duration_ms)}"
            )
            out.print(line + (f"  {escape(event.reason)}" if event.reason else ""))
        case events.TurnQueued():
            out.print(f"{at} {escape(event.agent):<12} waits: {escape(event.reason)}")
        case events.EngineChanged():
            out.print(f"{at} engine       {event.state}{': ' + escape(event.detail) if event.detail else ''}")
        case events.PolicyChanged():
            out.print(f"{at} policy       {escape(event.agent)}: {escape(event.problem or 'in force')}")
        case events.Alert():
            err.print(f"{at} [yellow]alert[/]        {escape(event.name)}: {escape(event.detail)}")


def _url(host: str, port: int) -> str:
    shown_host = "127.0.0.1" if host in {"0.0.0.0", ""} else host  # noqa: S104 - compared, not bound
    return f"http://[{shown_host}]:{port}" if ":" in shown_host else f"http://{shown_host}:{port}"


def _log_to_file(home: Home, options: UpOptions, token: Secret) -> None:
    """Everything goes to a rotated file in the home; secrets are taken out by value."""
    home.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home.logs / "governor.log"
    path.touch(mode=0o600)
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=3, encoding="utf-8", errors="replace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    known = [token, *([options.engine.upstream_key] if options.engine.upstream_key else [])]
    handler.addFilter(RedactingFilter(known))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if options.verbose else logging.INFO)
    for noisy in ("httpx", "httpcore", "alembic", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.INFO if options.verbose else logging.WARNING)


def _stop_on_signals(stop: asyncio.Event) -> None:
    """The first signal asks for an orderly end, a second one for an immediate one."""

    def on_signal() -> None:
        if stop.is_set():
            os._exit(int(Exit.FAILED))
        err.print("stopping: running turns get a moment to end (again to stop at once)")
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, on_signal)


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

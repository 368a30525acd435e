"""A governor in the foreground: engine, gateway, a line for every event, an orderly end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from logging.handlers import RotatingFileHandler

import uvloop
from rich.markup import escape

from governor import events, instance
from governor.cli.choices import UpOptions
from governor.cli.console import Exit, err, fail, milliseconds, out, shown
from governor.cli.engine import StartedEngine, started_engine
from governor.cli.engine_care import cared_for
from governor.cli.engine_ops import RETRY_SIGNAL
from governor.cli.owner import owner_key
from governor.gateway.server import bound_socket, check_bind
from governor.redact import RedactingFilter
from governor.runtime import Governor, RuntimeConfig
from governor.settings import Home, Secret
from governor.types import AgentName
from governor.wiring import assembled

_LOG_BYTES = 5 * 1024 * 1024


_GATHER_S = 0.2
"""A line waits this long for others: waking a thread for each event would cost a turn more than its line does."""
_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter from the event loop: the turn log's writer, a count of a new prompt."""


def run_up(options: UpOptions) -> None:
    """Run until stopped. Raises what the commands' error handling tells."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    uvloop.run(_up(options))


async def _up(options: UpOptions) -> None:
    check_bind(options.host, options.loopback_agent, options.hosts)
    home = options.home
    token = instance.new_admin_token()
    stop = asyncio.Event()
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
                supervised=engine.supervisor is not None,
                loopback_agent=AgentName(options.loopback_agent) if options.loopback_agent else None,
            )
            started_at = time.time()
            with assembled(
                home, engine.target, token, config=config, database=options.database, counter=engine.counter
            ) as (governor, _):
                engine.set_listener(governor.watch.on_process)
                _retry_on_signal(engine)
                async with _shown(governor), cared_for(engine, governor):
                    await governor.run(
                        bound, stop, lambda: _on_listening(home, url, started_at, token, key, engine.target.url)
                    )
        instance.remove_note(home)
        err.print("stopped")


def _on_listening(home: Home, url: str, started_at: float, token: Secret, key: Secret, engine_url: str) -> None:
    gc.collect()
    gc.freeze()  # what lives until the end is not looked through again: that would hold all turns up for 0.1 s
    instance.write_note(home, url, started_at, token, engine_url)
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
                await asyncio.sleep(_GATHER_S)
                await asyncio.to_thread(_print_events, news)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        await asyncio.gather(task)


def _print_events(news: Sequence[events.Numbered]) -> None:
    """Blocks while the terminal does not take more."""
    for numbered in news:
        _print_event(numbered.event)


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
        case events.TurnPaused():
            out.print(f"{at} {escape(event.agent):<12} paused: {escape(event.reason)}")
        case events.TurnResumed():
            out.print(f"{at} {escape(event.agent):<12} goes on after {milliseconds(event.paused_ms)}")
        case events.Compacted():
            sizes = f"{shown(event.before_tokens)} -> {shown(event.after_tokens)}"
            detail = f"  {escape(event.detail)}" if event.detail else ""
            out.print(f"{at} {escape(event.agent):<12} compaction by the {event.by}: {event.outcome}  {sizes}{detail}")
        case events.EngineChanged():
            out.print(f"{at} engine       {event.state}{': ' + escape(event.detail) if event.detail else ''}")
        case events.PolicyChanged():
            out.print(f"{at} policy       {escape(event.agent)}: {escape(event.problem or 'in force')}")
        case events.OwnerActed():
            what = f"{event.action} {event.target}: {event.outcome}: {event.detail}"
            out.print(f"{at} {escape(event.who):<12} {escape(what)}")
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

    # A terminal that closes is an end like any other; nohup asks not to hear of it.
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    for each in (signal.SIGINT, signal.SIGTERM, *hangup):
        asyncio.get_running_loop().add_signal_handler(each, on_signal)


def _retry_on_signal(engine: StartedEngine) -> None:
    """See :func:`governor.cli.engine_ops.retry`."""

    def on_signal() -> None:
        if engine.supervisor is not None:
            engine.supervisor.retry()

    asyncio.get_running_loop().add_signal_handler(RETRY_SIGNAL, on_signal)

"""``governor top``."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from logging.handlers import RotatingFileHandler
from typing import Annotated

import typer

from governor import instance
from governor.cli.console import Exit, fail
from governor.cli.options import HomeOption
from governor.cli.web import DEFAULT_PORT, serve_dashboard
from governor.settings import Home

_HOST = "127.0.0.1"
_LOG_BYTES = 1_000_000


def top(
    home: HomeOption,
    web: Annotated[bool, typer.Option("--web", help="Serve it to a browser instead.")] = False,
    host: Annotated[str, typer.Option(help="With --web: address to listen on.")] = _HOST,
    port: Annotated[
        int, typer.Option(help="With --web: port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = DEFAULT_PORT,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="With --web: a further name browsers reach this machine by.")
    ] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="As with NO_COLOR: no colours.")] = False,
    served: Annotated[bool, typer.Option("--served", hidden=True)] = False,
) -> None:
    """Watch the agents, live: who runs, who waits and for what, what ended how. Waits for a governor if none runs.

    \b
    governor top              here, also over ssh
    governor top --web        in a browser on this machine; it shows the address and a code
    """
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if web:
        serve_dashboard(home, host, port, allow_host or ())
        return
    if (host, port, allow_host or None) != (_HOST, DEFAULT_PORT, None):
        fail("--host, --port and --allow-host go with --web", Exit.USAGE)
    if not served and not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        fail("this is for a terminal; for scripts there is 'governor status --json'", Exit.USAGE)
    from tui.app import Dashboard  # noqa: PLC0415 - only this command needs Textual
    from tui.client import Address  # noqa: PLC0415

    def find() -> Address | None:
        note = instance.running_instance(home)
        return None if note is None else Address(note.url, note.token)

    _log_to_file(home)
    if served:
        threading.Thread(target=_end_with_the_server, daemon=True).start()
    app = Dashboard(find, client="web" if served else "top")
    signal.signal(signal.SIGTERM, lambda *_: app.exit())  # so that the terminal is left as it was
    app.run()


def _end_with_the_server() -> None:
    """Its end of our standard input is closed when it is killed, too. Not read here: the keys come by it."""
    pipe = select.poll()
    pipe.register(sys.stdin.fileno(), 0)
    pipe.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _log_to_file(home: Home) -> None:
    """Warnings go to a file, which is made by the first one: the screen is the dashboard's. Bounded, since a panel that
    cannot be drawn says so with each picture."""
    if home.logs.is_dir():
        file = RotatingFileHandler(home.logs / "top.log", maxBytes=_LOG_BYTES, backupCount=1, delay=True)
        logging.basicConfig(handlers=[file], level=logging.WARNING, format=logging.BASIC_FORMAT)

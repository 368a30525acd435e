"""``governor top --web``: the dashboard served to browsers, until Ctrl-C."""

from __future__ import annotations

import asyncio
import ipaddress
import shlex
import signal
import socket
import sys
from collections.abc import Sequence

from governor.cli.console import Exit, err, fail, out
from governor.settings import Home

DEFAULT_PORT = 8485


def serve_dashboard(home: Home, host: str, port: int, names: Sequence[str]) -> None:
    """Until a signal comes."""
    from governor.gateway.server import bound_socket  # noqa: PLC0415 - heavy, and "top" does not need it

    try:
        from tui.web.server import DashboardServer, is_loopback, new_code  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: pip install 'agent-governor[web]'", Exit.USAGE)
    try:
        bound = bound_socket(host, port)
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}. Try --port 0.", Exit.FAILED)
    code = new_code()
    server = DashboardServer(dashboard_command(home), bound, code=code, names=frozenset(names))
    is_open = not is_loopback(host)
    asyncio.run(server.run(_until_signal, lambda: _tell(bound, code, is_open=is_open, names=names)))


def dashboard_command(home: Home) -> str:
    """A shell's. ``-P``: the current folder may hold another ``governor``."""
    return shlex.join([sys.executable, "-P", "-m", "governor", "top", "--home", str(home.root), "--served"])


def _tell(bound: socket.socket, code: str, *, is_open: bool, names: Sequence[str]) -> None:
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    out.print(f"the dashboard is on [bold]http://{shown}:{port}/[/]; its code is [bold]{code}[/]")
    out.print("Ctrl-C ends it; the governor runs on.")
    if is_open:
        err.print("[yellow]others on the network can read what goes over it, the code too: it is plain HTTP.[/]")
        err.print("ssh -L is safer: leave --host out, and forward the port.")
        if ipaddress.ip_address(host).is_unspecified and not names:
            err.print("Browsers elsewhere get in by a name or address of this machine that --allow-host names.")
    sys.stdout.flush()


async def _until_signal() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()

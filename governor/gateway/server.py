"""The HTTP server: uvicorn with our own connections (``connection.py``), its address, and who may reach it there."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import uvicorn

from governor.errors import ConfigError
from governor.gateway.connection import HEAD_DEADLINE_S, STALL_DEADLINE_S, protocol_with
from governor.gateway.http import App

_KEEP_ALIVE_S = 75
"""Longer than clients' own pools keep connections, so that they, not we, close idle ones."""


def check_bind(host: str, loopback_agent: str | None, hosts: Collection[str] = ()) -> None:
    """Raises :class:`ConfigError` for an address that other machines can reach, unless every request has a key and
    the names under which they reach it are given (without one, each of their requests would be refused)."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if local:
        return
    if loopback_agent is not None:
        raise ConfigError(
            f"{host} can be reached from other machines; requests without a key are for loopback addresses only. "
            "Leave --loopback-agent out, or listen on 127.0.0.1.",
            file="command line",
            key="--host",
        )
    if not hosts:
        raise ConfigError(
            f"{host} can be reached from other machines; say under which names they may, with --allow-host NAME, "
            "or listen on 127.0.0.1.",
            file="command line",
            key="--host",
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket's address, taken now, so that a taken port is an error before anything else starts.

    Raises ``OSError``.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, for asyncio sends small writes at once only on sockets that say they are TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


class GatewayServer(uvicorn.Server):
    """A uvicorn server that leaves signals to whoever runs it, and tells when it listens."""

    def __init__(
        self,
        app: App,
        *,
        head_deadline_s: float = HEAD_DEADLINE_S,
        stall_deadline_s: float = STALL_DEADLINE_S,
        on_listening: Callable[[], None] = lambda: None,
        stop_within_s: int = 10,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol_with(head_deadline_s=head_deadline_s, stall_deadline_s=stall_deadline_s),
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_within_s,
        )
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled in one place, by the program that wires everything."""
        yield

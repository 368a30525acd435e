"""The HTTP server: uvicorn, with deadlines for request heads, which it has none for itself.

A socket that dribbles its head, or opens and says nothing, is answered 408 and closed at its deadline, so that it
cannot hold a connection. Bodies have a deadline of their own (``body.py``).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from governor.errors import ConfigError, RequestTimeout
from governor.gateway.http import App

HEAD_DEADLINE_S = 20.0
"""From the first byte of a request, or the opening of a connection, to the end of its head."""
_KEEP_ALIVE_S = 75
"""Longer than clients' own pools keep connections, so that they, not we, close idle ones."""


class DeadlineProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline for each request's head."""

    head_deadline_s: ClassVar[float] = HEAD_DEADLINE_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arm()

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.head_deadline_s, self._on_deadline)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        if self.transport.is_closing():
            return
        error = RequestTimeout(f"The request head did not arrive within {self.head_deadline_s:g} s.")
        body = error.body()
        head = (
            f"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def protocol_with(head_deadline_s: float) -> type[DeadlineProtocol]:
    return type("DeadlineProtocol", (DeadlineProtocol,), {"head_deadline_s": head_deadline_s})


def check_bind(host: str, loopback_agent: str | None) -> None:
    """Raises :class:`ConfigError` for an address that others can reach while requests without a key are let in."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and loopback_agent is not None:
        raise ConfigError(
            f"{host} can be reached from other machines; requests without a key are for loopback addresses only. "
            "Leave --loopback-agent out, or listen on 127.0.0.1.",
            file="command line",
            key="--host",
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket's address, taken now, so that a taken port is an error before anything else starts.

    Raises ``OSError``.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
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
        on_listening: Callable[[], None] = lambda: None,
        stop_within_s: int = 10,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol_with(head_deadline_s),
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_within_s,
            h11_max_incomplete_event_size=None,
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

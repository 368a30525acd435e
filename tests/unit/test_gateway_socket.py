"""The gateway's listening socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

from governor.gateway.server import bound_socket


async def test_a_connection_sends_each_event_at_once() -> None:
    """Else Nagle's algorithm holds every second small write until the client's delayed acknowledgement, 40 ms later."""
    without_delay = asyncio.get_running_loop().create_future()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            without_delay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    bound = bound_socket("127.0.0.1", 0)
    server = await asyncio.get_running_loop().create_server(Accepted, sock=bound)
    async with server:
        with closing(socket.create_connection(bound.getsockname())):
            assert await without_delay

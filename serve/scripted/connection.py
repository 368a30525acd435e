"""A small HTTP/1.1 server that controls every byte, write and connection end of its answers.

Requests are parsed by h11; answers are written by hand, because a server framework would merge writes, repair
framing and hide resets, and those are what tests of a gateway are about. Keep-alive and pipelined requests are
served one after another. A client that closes (or half-closes) its side before the answer has ended counts as gone:
its answer is stopped at once, as an engine aborts a generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import h11

from serve.scripted.script import Ending, Framing

_LOG = logging.getLogger(__name__)
_LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass
class Hit:
    """One request as it arrived and what became of its answer. Times are ``time.monotonic()`` seconds."""

    method: str
    target: str
    """Path and query as sent."""
    raw_headers: tuple[tuple[str, str], ...]
    """In the order and spelling of the wire."""
    body: bytes
    """The request body after transfer decoding, otherwise untouched."""
    received_at: float
    kind: str = ""
    """What the conversation took the request for (``agent``, ``title``, ...); empty for other answers."""
    status: int | None = None
    body_sent: bytearray = field(default_factory=bytearray)
    """Answer body before framing; empty when the engine does not keep bodies."""
    bytes_sent: int = 0
    """Answer body bytes handed to the kernel, before framing."""
    token_times: list[float] = field(default_factory=list)
    """When each generated token was written."""
    ended_at: float | None = None
    """When the answer was completed or broken off by the script."""
    peer_closed_at: float | None = None
    """When the client's close arrived, if the answer had not ended before."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def headers(self) -> dict[str, str]:
        """Lower-case names; the last of repeated headers wins."""
        return {name.lower(): value for name, value in self.raw_headers}

    @property
    def tokens_sent(self) -> int:
        return len(self.token_times)

    @property
    def tokens_sent_after_close(self) -> int:
        """Tokens written after the client's close had arrived here."""
        return 0 if self.peer_closed_at is None else self.tokens_sent_after(self.peer_closed_at)

    def tokens_sent_after(self, moment: float) -> int:
        """Tokens written later than ``moment``, for instance the time a test's own client left."""
        return sum(1 for written_at in self.token_times if written_at > moment)


class Exchange:
    """The answering side of one request."""

    def __init__(self, hit: Hit, connection: Connection, *, keep_body: bool) -> None:
        self.hit = hit
        self._connection = connection
        self._keep_body = keep_body
        self._framing: Framing | None = None
        self.has_ended = False
        self.must_close = False

    @property
    def has_head(self) -> bool:
        return self._framing is not None

    async def start(self, status: int, headers: Iterable[tuple[str, str]], framing: Framing) -> None:
        """Send the head. Headers go out as given; only what the framing needs is added."""
        lines = [f"{name}: {value}" for name, value in headers]
        names = {line.partition(":")[0].lower() for line in lines}
        if framing is Framing.CHUNKED and "transfer-encoding" not in names:
            lines.append("Transfer-Encoding: chunked")
        if framing is Framing.CLOSE:
            self.must_close = True
            if "connection" not in names:
                lines.append("Connection: close")
        try:
            reason = http.HTTPStatus(status).phrase
        except ValueError:
            reason = "Unknown"
        self._framing = framing
        self.hit.status = status
        await self._connection.send("\r\n".join([f"HTTP/1.1 {status} {reason}", *lines, "", ""]).encode("latin-1"))

    async def write(self, data: bytes, *, tokens: int = 0, flush: bool = False) -> None:
        """Send body bytes in one write. ``tokens`` of them are generated tokens. ``flush`` yields afterwards."""
        if not data:
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._framing is Framing.CHUNKED else data
        await self._connection.send(framed)
        hit = self.hit
        hit.bytes_sent += len(data)
        if self._keep_body:
            hit.body_sent += data
        if tokens:
            hit.token_times.extend([time.monotonic()] * tokens)
        if flush:
            await asyncio.sleep(0)

    async def end(self, how: Ending = Ending.FIN, *, close: bool = False) -> None:
        """End the answer; ``close`` ends the connection too, which every ending but ``FIN`` does anyway."""
        if self.has_ended:
            return
        if how is Ending.FIN and self._framing is Framing.CHUNKED:
            await self._connection.send(b"0\r\n\r\n")
        self.has_ended = True
        self.hit.ended_at = time.monotonic()
        self.must_close = self.must_close or close or how is not Ending.FIN
        if how is Ending.RST:
            await self._connection.reset()

    async def reply(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A whole JSON answer with its length."""
        head = [("Content-Type", "application/json"), *headers, ("Content-Length", str(len(body)))]
        await self.start(status, head, Framing.LENGTH)
        await self.write(body)
        await self.end()


Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]
Listener: TypeAlias = Callable[[Hit], None]


class Connection(asyncio.Protocol):
    """One client connection: parses requests, runs the handler for one at a time, notices when the client leaves."""

    def __init__(
        self,
        handler: Handler,
        connections: set[Connection],
        *,
        on_hit: Listener,
        on_answered: Listener,
        keep_bodies: bool,
    ) -> None:
        self._handler = handler
        self._on_hit = on_hit
        self._on_answered = on_answered
        self._connections = connections
        self._keep_bodies = keep_bodies
        self._parser = h11.Connection(h11.SERVER)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Paused while anything is buffered here: a send has then reached the kernel when it returns.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._connections.add(self)
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._parser.receive_data(data)
        if self._task is None:
            self._parse()

    def eof_received(self) -> None:
        self._on_peer_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._can_write.set()
        self._on_peer_closed()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    async def send(self, data: bytes) -> None:
        """Hand bytes to the kernel; waits while the client reads too slowly."""
        if self._transport is not None:
            self._transport.write(data)
        if not self._can_write.is_set():
            await self._can_write.wait()

    async def reset(self) -> None:
        """Send what is buffered, then a TCP reset."""
        transport = self._transport
        if transport is None:
            return
        await self._can_write.wait()
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        transport.abort()

    def close(self) -> None:
        """Drop the connection from this side."""
        self._exchange = None
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def _parse(self) -> None:
        try:
            while True:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    self._request = event
                    if self._parser.they_are_waiting_for_100_continue and self._transport is not None:
                        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._start_answer()
                    return
                else:
                    return
        except h11.RemoteProtocolError as error:
            _LOG.warning("not HTTP/1.1: %s", error)
            if self._transport is not None:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                self._transport.close()

    def _start_answer(self) -> None:
        request = self._request
        if request is None:
            return
        hit = Hit(
            method=request.method.decode("ascii"),
            target=request.target.decode("ascii"),
            raw_headers=tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in request.headers.raw_items()),
            body=bytes(self._body),
            received_at=time.monotonic(),
        )
        self._on_hit(hit)
        exchange = Exchange(hit, self, keep_body=self._keep_bodies)
        exchange.must_close = self._parser.their_state is h11.MUST_CLOSE
        self._exchange = exchange
        self._task = asyncio.get_running_loop().create_task(self._answer(exchange))
        # A callback rather than a finally: a task that is cancelled before its first step runs no code of its own.
        self._task.add_done_callback(lambda _: self._on_answer_over(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
            await exchange.end()
        except Exception:  # noqa: BLE001 the boundary of one request; the engine goes on
            _LOG.exception("answering %s %s failed", exchange.hit.method, exchange.hit.target)

    def _on_answer_over(self, exchange: Exchange) -> None:
        self._task = None
        self._exchange = None
        self._on_answered(exchange.hit)
        self._next(close=exchange.must_close or not exchange.has_ended)

    def _next(self, *, close: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if close:
            transport.close()
            return
        pipelined, _ = self._parser.trailing_data
        self._parser = h11.Connection(h11.SERVER)
        self._request = None
        self._body.clear()
        if pipelined:
            self._parser.receive_data(pipelined)
            self._parse()

    def _on_peer_closed(self) -> None:
        exchange = self._exchange
        if exchange is not None and not exchange.has_ended and exchange.hit.peer_closed_at is None:
            exchange.hit.peer_closed_at = time.monotonic()
        if self._task is not None:
            self._task.cancel()

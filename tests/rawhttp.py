"""HTTP by hand: sockets that send what no client library would, and leave the way a test wants."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11

_LINGER_ZERO = struct.pack("ii", 1, 0)


class RawSocket:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Raises ``OSError`` when the other side is gone."""
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, timeout_s: float = 5.0) -> bytes:
        """Whatever comes next; empty at the end, a reset included."""
        async with asyncio.timeout(timeout_s):
            try:
                return await self.reader.read(65536)
            except ConnectionError:
                return b""

    async def read_until(self, text: bytes, timeout_s: float = 5.0) -> bytes:
        """Everything up to and including ``text``. Raises ``AssertionError`` when the connection ends before."""
        seen = b""
        async with asyncio.timeout(timeout_s):
            while text not in seen:
                piece = await self.reader.read(65536)
                if not piece:
                    raise AssertionError(f"the connection ended after {seen!r}")
                seen += piece
        return seen

    async def read_to_end(self, timeout_s: float = 5.0) -> bytes:
        """Everything until the other side closes."""
        seen = b""
        async with asyncio.timeout(timeout_s):
            while piece := await self.read(timeout_s):
                seen += piece
        return seen

    def leave(self, *, reset: bool = False) -> None:
        """Close with a FIN, or with a RST. May be repeated."""
        if reset and not self._writer.is_closing():
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self._writer.transport.abort()
        self._writer.close()


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def answers_in(data: bytes) -> list[Answer]:
    """All whole answers in what a connection sent. Raises on anything else."""
    answers: list[Answer] = []
    while data:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(data)
        status, headers, body = 0, dict[str, str](), b""
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif event is h11.NEED_DATA:
                raise AssertionError(f"cut inside an answer: {data[:200]!r}")
        answers.append(Answer(status, headers, body))
        data = parser.trailing_data[0]
    return answers


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawSocket]:
    """A connection to the host and port of ``url``."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 26)
    raw = RawSocket(reader, writer)
    try:
        yield raw
    finally:
        raw.leave()


def request_bytes(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """One request as bytes. ``headers`` replace the usual ones."""
    usual = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    if key is not None:
        usual["authorization"] = f"Bearer {key}"
    lines = [f"{name}: {value}" for name, value in {**usual, **(headers or {})}.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body

"""A load client that costs next to nothing: one kept connection a stream, raw bytes out, time stamps in.

What an HTTP library would spend on each chunk would stand in the way of what is measured.
"""

from __future__ import annotations

import asyncio
import re
from time import perf_counter
from typing import Self
from urllib.parse import urlsplit

import msgspec

_FIRST_TOKEN = re.compile(rb'"content":"[^"]')
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_PATH = "/v1/chat/completions"


class BenchFailed(Exception):
    """An answer was not what the measurement needs; figures from it would mean nothing."""


class Timing(msgspec.Struct, frozen=True):
    """One answer. Seconds since its request began to be written."""

    first_byte_s: float
    first_token_s: float
    end_s: float
    events: int
    """Server-sent events in the answer."""


class Stream(asyncio.Protocol):
    """A connection that carries one request at a time. Use as an async context manager."""

    def __init__(self, url: str, key: str | None) -> None:
        address = urlsplit(url)
        self._host, self._port = str(address.hostname), int(address.port or 80)
        credential = f"authorization: Bearer {key}\r\n" if key else ""
        self._head = (
            f"POST {_PATH} HTTP/1.1\r\nhost: {address.netloc}\r\n{credential}"
            "content-type: application/json\r\naccept: text/event-stream\r\ncontent-length: "
        ).encode()
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Timing] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._host, self._port)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, body: bytes) -> Timing:
        """One chat request. Raises :class:`BenchFailed` unless it streams to a proper end."""
        if self._transport is None or self._transport.is_closing():
            raise BenchFailed("the server has closed the connection")
        self._answered = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []
        self._seen = b""
        self._tail = b""
        self._first_byte = self._first_token = 0.0
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        self._began = perf_counter()
        self._transport.write(request)
        return await self._answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self._pieces.append(data)
        if not self._first_byte:
            self._first_byte = now
        if not self._first_token:
            self._seen += data
            if _FIRST_TOKEN.search(self._seen):
                self._first_token = now
        self._tail = self._tail[-len(_LAST_CHUNK) :] + data[-len(_LAST_CHUNK) :]
        if self._tail.endswith(_LAST_CHUNK):
            self._end(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            said = b"".join(self._pieces)[:500].decode(errors="replace")
            self._answered.set_exception(BenchFailed(f"the connection closed inside an answer: {said!r}"))

    def _end(self, now: float) -> None:
        answered, whole = self._answered, b"".join(self._pieces)
        if answered is None or answered.done():
            return
        if not whole.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in whole or not self._first_token:
            answered.set_exception(BenchFailed(f"a bad answer: {whole[:500].decode(errors='replace')!r}"))
            return
        began = self._began
        answered.set_result(
            Timing(self._first_byte - began, self._first_token - began, now - began, whole.count(b"\n\n"))
        )

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

_GOOD = b"HTTP/1.1 200 "
_FIRST_TOKEN = re.compile(rb'"content": ?"[^"]')
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
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, body: bytes) -> Timing:
        """One chat request. Raises :class:`BenchFailed` unless it streams to a proper end.

        A connection that the server has closed since the last request is opened anew before the clock starts.
        """
        loop = asyncio.get_running_loop()
        transport = self._transport
        if transport is None or transport.is_closing():
            self._answered = None
            transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
        self._answered = loop.create_future()
        self._pieces: list[bytes] = []
        self._seen = b""
        self._tail = b""
        self._first_byte = self._first_token = 0.0
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        self._began = perf_counter()
        transport.write(request)
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
            elif not self._seen.startswith(_GOOD[: len(self._seen)]):
                self._fail("a bad answer")
        self._tail = self._tail[-len(_LAST_CHUNK) :] + data[-len(_LAST_CHUNK) :]
        if self._tail.endswith(_LAST_CHUNK):
            self._end(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection closed inside an answer")

    def _end(self, now: float) -> None:
        whole = b"".join(self._pieces)
        if b"data: [DONE]" not in whole or not self._first_token:
            self._fail("an answer without its end or without a token")
        elif self._answered is not None and not self._answered.done():
            began = self._began
            timing = Timing(self._first_byte - began, self._first_token - began, now - began, whole.count(b"\n\n"))
            self._answered.set_result(timing)

    def _fail(self, what: str) -> None:
        if self._answered is not None and not self._answered.done():
            said = b"".join(self._pieces)[:500].decode(errors="replace")
            self._answered.set_exception(BenchFailed(f"{what}: {said!r}"))

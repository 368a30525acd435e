"""The client's side of a turn: one answer, begun once, kept alive while it waits, ended once.

Until the head is sent a failure is an HTTP error. After it, a failure is the last event of the stream: never a new
status, never an invented finish. Nothing is held back: what is written is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from governor.clock import Clock
from governor.errors import GovernorError
from governor.gateway.http import EVENT_STREAM, Send, send_body, start_message
from governor.policy.model import KeepAlive, StreamPolicy
from governor.redact import Redactor
from governor.wire import failures, sse
from serve.engine import Endpoint

_STREAM_HEADERS = {"content-type": EVENT_STREAM, "cache-control": "no-cache", "x-accel-buffering": "no"}


def _nowhere() -> None:
    pass


class Reply:
    """One HTTP answer. Not for use by several writers at once, but for :meth:`kept_alive`'s own."""

    def __init__(self, send: Send, endpoint: Endpoint, clock: Clock, redactor: Redactor) -> None:
        self._send = send
        self._endpoint = endpoint
        self._clock = clock
        self._redactor = redactor
        self._last_sent = clock.monotonic()
        self._finished = False
        self.headers: dict[str, str] = {}
        """Our own headers, added to whatever head is sent."""
        self.place_in_line: Callable[[], str | None] = _nowhere
        """While the turn waits: what a keep-alive may say of that, on one line; ``None`` when it does not wait."""
        self.status: int | None = None
        """The status sent; ``None`` before."""
        self.bytes_sent = 0

    @property
    def started(self) -> bool:
        return self.status is not None

    @property
    def finished(self) -> bool:
        """All of the answer was handed to the server."""
        return self._finished

    async def start_stream(self) -> None:
        """Send the head of an event stream, unless a keep-alive did so already."""
        if not self.started:
            await self._start(200, _STREAM_HEADERS)

    async def write(self, data: bytes) -> None:
        self.bytes_sent += len(data)
        self._last_sent = self._clock.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """End a stream. May be repeated."""
        if not self._finished:
            self._finished = True
            await self._send({"type": "http.response.body", "body": b""})

    async def send_whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """A plain answer, head and body."""
        self.status, self._finished = status, True
        self.bytes_sent += len(body)
        await send_body(self._send, status, body, {**headers, **self.headers})

    async def fail(self, error: GovernorError) -> None:
        """Tell the client of a failure in the way that is still open. Does nothing on a finished answer."""
        if self._finished:
            return
        if self.started:
            await self.write(self.redacted(failures.error_event(self._endpoint, error)))
            await self.finish()
        else:
            headers = {"content-type": error.content_type, **error.headers()}
            await self.send_whole(error.status, self.redacted(failures.error_body(self._endpoint, error)), headers)

    def redacted(self, error: bytes) -> bytes:
        """An engine may echo its key in an error; the client must not see it."""
        return self._redactor.data(error)

    @asynccontextmanager
    async def kept_alive(self, policy: StreamPolicy, model: str, *, enabled: bool) -> AsyncIterator[None]:
        """While inside, a quiet stream gets its head and then a keep-alive from time to time.

        Not ``enabled`` for plain answers, which have nothing that could be sent early.
        """
        if not enabled:
            yield
            return
        keeper = asyncio.create_task(self._keep_alive(policy, model))
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep_alive(self, policy: StreamPolicy, model: str) -> None:
        while not self._finished:
            patience = policy.keepalive_every_s if self.started else policy.keepalive_after_s
            quiet = self._clock.monotonic() - self._last_sent
            if quiet < patience:
                await asyncio.sleep(patience - quiet)
                continue
            await self.start_stream()
            await self.write(self._beat(policy.keepalive, model))

    def _beat(self, kind: KeepAlive, model: str) -> bytes:
        if self._endpoint is Endpoint.MESSAGES:
            return sse.encode(b'{"type":"ping"}', event="ping")
        if kind is KeepAlive.COMMENT or self._endpoint is Endpoint.RESPONSES:
            place = self.place_in_line()
            return sse.KEEPALIVE_COMMENT if place is None else sse.comment(place)
        kind_name = "chat.completion.chunk" if self._endpoint is Endpoint.CHAT else "text_completion"
        chunk = {"id": "keep-alive", "object": kind_name, "created": 0, "model": model, "choices": []}
        return sse.encode(msgspec.json.encode(chunk))

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self._last_sent = self._clock.monotonic()
        await self._send(start_message(status, {**headers, **self.headers}))

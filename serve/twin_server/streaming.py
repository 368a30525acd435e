"""Streams of a generation, and what happens when their client goes away or a fault cuts them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send


class BrokenOff(Exception):
    """The connection is to break here."""


class GeneratedStream(StreamingResponse):
    """Server-sent events. ``on_gone`` is called when the connection is over, however that came."""

    def __init__(self, events: AsyncIterator[bytes], on_gone: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._on_gone = on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except* BrokenOff:
            pass  # the server closes a connection whose answer is not complete
        finally:
            self._on_gone()


class BrokenBody(Response):
    """An answer in one piece that breaks: its head says that there is more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"65536")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})

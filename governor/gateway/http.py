"""Small ASGI pieces that all routes share: types, headers, and JSON answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from governor.errors import GovernorError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


def headers_of(scope: Scope) -> dict[str, str]:
    """Request headers by lower-case name; of a repeated one the first counts."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def start_message(status: int, headers: Mapping[str, str]) -> Message:
    raw = [(name.encode("latin-1"), _one_line(value).encode("latin-1", "replace")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}


def _one_line(value: str) -> str:
    """Header values never carry control characters, whatever an engine put into its own."""
    return "".join(char if char.isprintable() else " " for char in value)


async def send_body(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """A whole answer at once."""
    await send(start_message(status, {"content-length": str(len(body)), **headers}))
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: GovernorError) -> None:
    await send_body(send, error.status, error.body(), {"content-type": error.content_type, **error.headers()})

"""Answers written out step by step: what goes on the wire, when, and how the connection ends.

Owns the step vocabulary of a response script and its JSON form, because test cases, benchmarks and people all write
answers in it. A script is a JSON list of objects, each one step::

    {"status": 200, "headers": {...}}            the head; framing is chunked unless a Content-Length is given
                                                 ("framing": "close" ends the body by closing the connection)
    {"sse": {...}, "event": "name"}              one server-sent event whose data is this JSON
    {"data": "[DONE]"}                           one server-sent event with this text
    {"json": ...} {"text": "..."} {"b64": "..."} bytes; "piece_bytes": N cuts them into writes of N bytes
    {"tokens": 40, "interval_ms": 20}            generated tokens in the form the request asked for
    {"sleep": 0.5} {"hang": 120}                 seconds; a hang ends without another byte, like a dead engine
    {"close": "fin" | "cut" | "rst"}             end well, break off inside the body, or reset

``"flush": true`` on a step that writes bytes hands them to the kernel as a write of their own and yields.
``{"$repeat": [value, n]}`` and ``{"$concat": [...]}`` may stand for any string.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec


class BadScript(ValueError):
    """A script does not follow the vocabulary. The message names the step."""


class Framing(StrEnum):
    """How the end of a body is told."""

    CHUNKED = "chunked"
    LENGTH = "length"
    CLOSE = "close"


class Ending(StrEnum):
    """How a connection ends."""

    FIN = "fin"
    """The body is completed as its framing says, then the connection is closed."""
    CUT = "cut"
    """The connection is closed in an orderly way, but inside the body."""
    RST = "rst"
    """The connection is reset."""


class Head(msgspec.Struct, frozen=True):
    status: int
    headers: tuple[tuple[str, str], ...]
    framing: Framing


class Write(msgspec.Struct, frozen=True):
    data: bytes
    flush: bool = False


class Tokens(msgspec.Struct, frozen=True):
    count: int
    interval_s: float
    closes: bool
    """Nothing follows in the script, so the stream is brought to a proper end."""


class Sleep(msgspec.Struct, frozen=True):
    seconds: float


class Hang(msgspec.Struct, frozen=True):
    seconds: float


class Close(msgspec.Struct, frozen=True):
    how: Ending


Step: TypeAlias = Head | Write | Tokens | Sleep | Hang | Close


def expand(value: Any) -> Any:
    """Replace ``$repeat`` and ``$concat`` by the strings they stand for, at any depth."""
    if isinstance(value, Mapping):
        if set(value) == {"$repeat"}:
            text, times = value["$repeat"]
            return str(expand(text)) * int(times)
        if set(value) == {"$concat"}:
            return "".join(str(expand(part)) for part in value["$concat"])
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item) for item in value]
    return value


def sse_frame(data: bytes, event: str | None = None) -> bytes:
    """One server-sent event; ``data`` holds no line break."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"data: " + data + b"\n\n"


def parse_script(raw: Sequence[Any]) -> tuple[Step, ...]:
    """Steps of one answer. Raises :class:`BadScript` naming the step that is wrong."""
    steps: list[Step] = []
    for number, item in enumerate(raw):
        if not isinstance(item, Mapping):
            raise BadScript(f"step {number}: an object is needed, not {type(item).__name__}")
        is_last = all("close" in later for later in raw[number + 1 :] if isinstance(later, Mapping))
        try:
            steps.extend(_parse_step(expand(item), is_last=is_last))
        except BadScript as error:
            raise BadScript(f"step {number}: {error}") from error
        except (TypeError, ValueError, KeyError) as error:
            raise BadScript(f"step {number}: {item!r}: {error}") from error
    for step in steps:
        if isinstance(step, Head):
            break
        if isinstance(step, Write | Tokens):
            raise BadScript("bytes are written before a status")
    return tuple(steps)


_COMPANIONS = {
    "status": {"headers", "framing"},
    "sse": {"event", "flush", "piece_bytes"},
    "data": {"flush", "piece_bytes"},
    "json": {"flush", "piece_bytes"},
    "text": {"flush", "piece_bytes"},
    "b64": {"flush", "piece_bytes"},
    "tokens": {"interval_ms"},
    "sleep": set[str](),
    "hang": set[str](),
    "close": set[str](),
}


def _parse_step(item: dict[str, Any], *, is_last: bool) -> list[Step]:
    verbs = _COMPANIONS.keys() & item.keys()
    if len(verbs) != 1:
        raise BadScript(f"exactly one of {', '.join(_COMPANIONS)} is needed, got {sorted(item)}")
    verb = verbs.pop()
    if unknown := item.keys() - _COMPANIONS[verb] - {verb}:
        raise BadScript(f"unknown keys beside {verb!r}: {sorted(unknown)}")
    value = item[verb]
    if verb == "status":
        return [_parse_head(int(value), item.get("headers", {}), item.get("framing"))]
    if verb == "tokens":
        return [Tokens(int(value), float(item.get("interval_ms", 0)) / 1000, is_last)]
    if verb == "sleep":
        return [Sleep(float(value))]
    if verb == "hang":
        return [Hang(float(value))]
    if verb == "close":
        return [Close(Ending(value))]
    data = _payload(verb, value, item.get("event"))
    size = int(item.get("piece_bytes", 0)) or max(1, len(data))
    flush = bool(item.get("flush", False)) or "piece_bytes" in item
    return [Write(data[at : at + size], flush) for at in range(0, max(1, len(data)), size)]


def _payload(verb: str, value: Any, event: str | None) -> bytes:
    if verb == "sse":
        return sse_frame(msgspec.json.encode(value), event)
    if verb == "data":
        return sse_frame(str(value).encode())
    if verb == "json":
        return msgspec.json.encode(value)
    if verb == "text":
        return str(value).encode()
    return base64.b64decode(value, validate=True)


def _parse_head(status: int, headers: Mapping[str, Any], framing: str | None) -> Head:
    pairs = tuple((str(name), str(value)) for name, value in headers.items())
    if framing is not None:
        return Head(status, pairs, Framing(framing))
    has_length = any(name.lower() == "content-length" for name, _ in pairs)
    return Head(status, pairs, Framing.LENGTH if has_length else Framing.CHUNKED)

"""Server-sent events, cut at event boundaries with every byte kept. Parsing is only for reading alongside.

Line ends may be LF, CRLF or CR, mixed; an event may arrive one byte at a time.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from governor.errors import UpstreamError

_EVENT_END = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
_LINE_END = re.compile(rb"\r\n|\n|\r")

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An engine that never ends a line must not fill our memory."""


class SseEvent(msgspec.Struct, frozen=True):
    """One event: its very bytes, blank line included, and its joined data (``None`` if it has no data line)."""

    raw: bytes
    data: bytes | None

    @property
    def is_comment(self) -> bool:
        """Nothing but comment lines."""
        return self.data is None and all(not line or line.startswith(b":") for line in _LINE_END.split(self.raw))


class SseSplitter:
    """Feed it chunks as they come; it returns whole events and keeps the rest."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """Bytes of an event that has not ended yet."""
        return self._rest

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Whole events in order. Raises :class:`UpstreamError` on an event over :data:`MAX_EVENT_BYTES`."""
        if not self._rest and b"\r" not in chunk:
            *whole, self._rest = chunk.split(b"\n\n")
            events = [_parse_plain(event) for event in whole]
        else:
            buffer = self._rest + chunk if self._rest else chunk
            events, start = [], 0
            for end in _event_ends(buffer, max(0, len(self._rest) - 3)):
                events.append(_parse(buffer[start:end]))
                start = end
            self._rest = buffer[start:]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UpstreamError(f"The engine sent an event of more than {MAX_EVENT_BYTES} bytes without an end.")
        return events


def _event_ends(buffer: bytes, search_from: int) -> Iterator[int]:
    """Where events end. Nearly all engines write LF alone, and to look for that is 50 times as fast."""
    if b"\r" in buffer:
        yield from (match.end() for match in _EVENT_END.finditer(buffer, search_from))
        return
    found = buffer.find(b"\n\n", search_from)
    while found >= 0:
        yield found + 2
        found = buffer.find(b"\n\n", found + 2)


def _parse_plain(event: bytes) -> SseEvent:
    """One without its blank line, and with no line end but LF; nearly all events of nearly all engines are such."""
    raw = event + b"\n\n"
    if event.startswith(b"data: ") and b"\n" not in event:
        return SseEvent(raw, event[6:])
    return SseEvent(raw, _data_in(event.split(b"\n")))


def _parse(raw: bytes) -> SseEvent:
    return SseEvent(raw, _data_in(_LINE_END.split(raw)))


def _data_in(lines: list[bytes]) -> bytes | None:
    data = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in lines
        if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(data) if data else None


def encode(data: bytes, event: str | None = None) -> bytes:
    """One event, ready to send."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A comment, which every client skips. What is not printable ASCII becomes ``?``."""
    line = "".join(char if " " <= char <= "~" else "?" for char in text)
    return f": {line}\n\n".encode()


KEEPALIVE_COMMENT = comment("keep-alive")

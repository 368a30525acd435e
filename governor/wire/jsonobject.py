"""A JSON object kept as the bytes it came in: read some fields, change some, leave every other byte alone.

Why not decode and encode again: prompts are cached by their exact bytes downstream, numbers and escapes would change
their spelling, and a 400 KB body would cost milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from governor.errors import BadRequest

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_KEY = re.compile(rb'[\s{,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_AFTER_VALUE = re.compile(rb"\s*[,}]")


class _Entry(msgspec.Struct, frozen=True):
    """Where a field stands: ``body[start:value]`` is its key and colon, ``body[value:end]`` its value."""

    name: str
    start: int
    value: int
    end: int


class Span(msgspec.Struct, frozen=True):
    """A part of a body. It stands in the list that is the value of a field, begins behind the list's bracket, and holds
    whole items with the commas behind them: without it the body is as good an object as with it."""

    start: int
    end: int


class JsonObject:
    """One top-level JSON object. Raises :class:`BadRequest` unless the body is exactly one, without repeated keys.

    ``known``: a part that is known to be well-formed, and is not read again.
    """

    def __init__(self, body: bytes, known: Span | None = None) -> None:
        self.body = body
        read = body if known is None else body[: known.start] + body[known.end :]
        try:
            read.decode()
            self._read = _FIELDS.decode(read)
        except UnicodeDecodeError as error:
            raise BadRequest(f"The request body is not UTF-8 (byte {error.start}).") from error
        except msgspec.ValidationError as error:
            raise BadRequest("The request body is JSON, but not a JSON object.") from error
        except msgspec.DecodeError as error:
            raise BadRequest(f"The request body is not valid JSON: {error}.") from error
        except RecursionError as error:
            raise BadRequest("The request body is nested too deeply.") from error
        entries = _located(read, self._read)
        self._entries = entries if known is None else tuple(_behind(known, entry) for entry in entries)
        self._known_in = None if known is None else next(e for e in self._entries if e.value < known.start < e.end)

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def names(self) -> tuple[str, ...]:
        """Field names in the order they came."""
        return tuple(entry.name for entry in self._entries)

    def raw(self, name: str) -> msgspec.Raw | None:
        """The undecoded value of a field; ``None`` when it is absent. A JSON ``null`` is ``Raw(b"null")``."""
        whole = self._known_in
        if whole is not None and whole.name == name:
            return msgspec.Raw(memoryview(self.body)[whole.value : whole.end])
        return self._read.get(name)

    def raw_new(self, name: str) -> msgspec.Raw | None:
        """The same without what of it was known."""
        return self._read.get(name)

    def value_start(self, name: str) -> int:
        """Where in the body the value of a field begins. Raises :class:`KeyError` when it is absent."""
        for entry in self._entries:
            if entry.name == name:
                return entry.value
        raise KeyError(name)

    def edited(self, changes: Mapping[str, bytes | None]) -> bytes:
        """The body with these fields set to these JSON values, or removed where the value is ``None``.

        Fields that are not there yet are appended. With no effective change the very same bytes come back.
        """
        if not changes:
            return self.body
        body = memoryview(self.body)  # each slice would be a copy more
        out: list[bytes | memoryview] = []
        last_end: int | None = None
        for index, entry in enumerate(self._entries):
            value = changes.get(entry.name, b"") if entry.name in changes else body[entry.value : entry.end]
            if value is None:
                continue
            if last_end is None:
                out.append(body[: self._entries[0].start])
            else:
                out.append(body[self._entries[index - 1].end : entry.start])
            out += (body[entry.start : entry.value], value)
            last_end = entry.end
        head_only = last_end is None
        if head_only:
            out.append(body[: self.body.index(b"{") + 1])
        for name, value in changes.items():
            if value is not None and name not in self._read:
                out += (b"" if head_only else b",", msgspec.json.encode(name), b":", value)
                head_only = False
        out.append(body[self._entries[-1].end :] if self._entries else body[self.body.index(b"{") + 1 :])
        return b"".join(out)


def _located(body: bytes, values: Mapping[str, msgspec.Raw]) -> tuple[_Entry, ...]:
    """Walk key by key, using the decoder's values to leap over them; a repeated key betrays itself on the way."""
    entries, position = [], 0
    seen: set[str] = set()
    for _ in values:
        key = _KEY.match(body, position)
        if key is None:  # cannot happen for a body the decoder took, unless a key came twice
            raise BadRequest("The request body repeats a key.")
        name = _STRING.decode(key[1])
        value = memoryview(values[name])
        end = key.end() + len(value)
        if name in seen or not body.startswith(value, key.end()) or not _AFTER_VALUE.match(body, end):
            raise BadRequest(f"The request body has the key {name!r} more than once.", param=name)
        seen.add(name)
        entries.append(_Entry(name, key.start(1), key.end(), end))
        position = end
    rest = _KEY.match(body, position)
    if rest is not None:
        name = _STRING.decode(rest[1])
        raise BadRequest(f"The request body has the key {name!r} more than once.", param=name)
    return tuple(entries)


def _behind(known: Span, entry: _Entry) -> _Entry:
    """Where a field stands once the known part is back in its place."""
    if entry.end <= known.start:
        return entry
    size = known.end - known.start
    if entry.value < known.start:
        return _Entry(entry.name, entry.start, entry.value, entry.end + size)
    return _Entry(entry.name, entry.start + size, entry.value + size, entry.end + size)


def appended(body: bytes, fields: Mapping[str, bytes]) -> bytes:
    """The body of an object that has other fields, with these at its end, unread: of a field that is there already, the
    last value is the one that counts."""
    more = b"".join(b',"%b":%b' % (name.encode(), value) for name, value in fields.items())
    return b"".join((memoryview(body)[: body.rindex(b"}")], more, b"}"))

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


class JsonObject:
    """One top-level JSON object. Raises :class:`BadRequest` unless the body is exactly one, without repeated keys."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        try:
            body.decode()
            self._raw = _FIELDS.decode(body)
        except UnicodeDecodeError as error:
            raise BadRequest(f"The request body is not UTF-8 (byte {error.start}).") from error
        except msgspec.ValidationError as error:
            raise BadRequest("The request body is JSON, but not a JSON object.") from error
        except msgspec.DecodeError as error:
            raise BadRequest(f"The request body is not valid JSON: {error}.") from error
        except RecursionError as error:
            raise BadRequest("The request body is nested too deeply.") from error
        self._entries = self._locate()

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def names(self) -> tuple[str, ...]:
        """Field names in the order they came."""
        return tuple(entry.name for entry in self._entries)

    def raw(self, name: str) -> msgspec.Raw | None:
        """The undecoded value of a field; ``None`` when it is absent. A JSON ``null`` is ``Raw(b"null")``."""
        return self._raw.get(name)

    def edited(self, changes: Mapping[str, bytes | None]) -> bytes:
        """The body with these fields set to these JSON values, or removed where the value is ``None``.

        Fields that are not there yet are appended. With no effective change the very same bytes come back.
        """
        body = self.body
        out: list[bytes] = []
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
            out.append(body[: body.index(b"{") + 1])
        for name, value in changes.items():
            if value is not None and name not in self._raw:
                out += (b"" if head_only else b",", msgspec.json.encode(name), b":", value)
                head_only = False
        out.append(body[self._entries[-1].end :] if self._entries else body[body.index(b"{") + 1 :])
        return b"".join(out)

    def _locate(self) -> tuple[_Entry, ...]:
        """Walk key by key, using the decoder's values to leap over them; a repeated key betrays itself on the way."""
        body, entries, position = self.body, [], 0
        seen: set[str] = set()
        for _ in self._raw:
            key = _KEY.match(body, position)
            if key is None:  # cannot happen for a body the decoder took, unless a key came twice
                raise BadRequest("The request body repeats a key.")
            name = _STRING.decode(key[1])
            value = bytes(self._raw[name])
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

"""Where the members of a JSON object stand in its text, so that one can be exchanged and all else stays byte for byte.

Unlike ``governor.wire.jsonobject`` it works at any depth and keeps a member's place, which in a list of rules decides.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Member(msgspec.Struct, frozen=True):
    """``text[start:value]`` is the key with its colon, ``text[value:end]`` the value."""

    key: str
    start: int
    value: int
    end: int


def members(text: str, at: int) -> tuple[Member, ...]:
    """Members of the object whose ``{`` is at ``at``, in order, repeated keys included. ``text`` is valid JSON."""
    found: list[Member] = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        if text[at] == ",":
            at = _skip(text, at + 1)
        key, after = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, after) + 1)
        _decoded, end = _DECODER.raw_decode(text, value)
        found.append(Member(key, at, value, end))
        at = _skip(text, end)
    return tuple(found)


def locate(text: str, *keys: str) -> int:
    """Where the value under these keys begins. Raises :class:`KeyError` where there is none, or a key is repeated."""
    at = _skip(text, 0)
    for key in keys:
        matching = [member for member in members(text, at) if member.key == key]
        if len(matching) != 1:
            raise KeyError(key)
        at = matching[0].value
    return at


def exchanged(text: str, old: Member, key: str, value: dict[str, Any]) -> str:
    """``text`` with another member in the old one's place, laid out over lines if the old one was."""
    head = f"{json.dumps(key)}: "
    outer = _before_on_line(text, old.start)
    inner = _before_on_line(text, _skip(text, old.value + 1))
    if "\n" not in text[old.value : old.end] or outer.strip() or inner.strip():
        return text[: old.start] + head + json.dumps(value) + text[old.end :]
    newline = "\r\n" if "\r\n" in text[old.value : old.end] else "\n"
    lines = f",{newline}".join(f"{inner}{json.dumps(name)}: {json.dumps(part)}" for name, part in value.items())
    return f"{text[: old.start]}{head}{{{newline}{lines}{newline}{outer}}}{text[old.end :]}"


def _before_on_line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : at]


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at

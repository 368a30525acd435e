"""The billing line that a coding client puts before its system prompt, with a nonce for each request. Pure.

Claude Code 2.1 sends it as the first block of ``system``: ``x-anthropic-billing-header: cc_version=2.1.177.01c;
cc_entrypoint=sdk-cli; cch=36ee5;`` (https://github.com/anthropics/claude-code/issues/68900); gateways that join the
blocks make it the first line of a text. Nothing behind a nonce can come from a cache of prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from governor.errors import BadRequest
from governor.wire.jsonobject import JsonObject
from governor.wire.messages import decode, joined

_MARK = b"x-anthropic-billing-header:"
_FIELD = r"[^=;\r\n]+=[^;\s]*(?:;|(?=[ \t]*(?:[\r\n]|\Z)))"
_LINES = re.compile(rf"(?:x-anthropic-billing-header:(?:{_FIELD})+[ \t]*(?:[\r\n]+|\Z))+")
"""Whole lines of ``key=value`` fields, at the very start."""
_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


def without_attribution(system: Sequence[bytes]) -> list[bytes | None]:
    """The texts, lists of blocks or messages of a system prompt, without the lines that open it. ``None`` where nothing
    is left of one. What is not touched is the very same bytes."""
    kept: list[bytes | None] = list(system)
    for index, raw in enumerate(system):
        if _MARK not in raw:
            break
        kept[index] = _without(raw)
        if kept[index] is not None:
            break
    return kept


def _without(raw: bytes) -> bytes | None:
    """Of a text, a list of blocks, or an object that has one as ``content`` or ``text``."""
    opening = raw.lstrip()[:1]
    if opening == b'"':
        return _text_without(raw)
    if opening == b"[":
        return _list_without(raw)
    try:
        fields = JsonObject(raw)
    except BadRequest:
        return raw
    name = "content" if "content" in fields else "text"
    value = fields.raw(name)
    if value is None or bytes(value)[:1] not in {b'"', b"["}:
        return raw
    before = bytes(value)
    after = _without(before)
    if after is None:
        return None
    return raw if after is before else fields.edited({name: after})


def _text_without(raw: bytes) -> bytes | None:
    text = decode(raw)
    found = _LINES.match(text) if isinstance(text, str) else None
    if found is None:
        return raw
    return msgspec.json.encode(text[found.end() :]) if found.end() < len(text) else None


def _list_without(raw: bytes) -> bytes | None:
    try:
        parts = [bytes(part) for part in _PARTS.decode(raw)]
    except (msgspec.MsgspecError, RecursionError):
        return raw
    kept = without_attribution(parts)
    if kept == parts:
        return raw
    left = [part for part in kept if part is not None]
    return joined(left) if left else None

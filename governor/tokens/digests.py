"""Digests of messages: exact ones of the bytes as sent, loose ones of what the message means.

The exact digest costs a hash of bytes already in memory. The loose one parses JSON and is taken only where exact ones
differ, to tell a client's harmless rewriting of its own history from an edit.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TypeAlias

import msgspec

MessageDigest: TypeAlias = bytes
"""The first 16 bytes of a SHA-256: processors of the last years compute it in hardware, three times as fast as any
other hash of the standard library on long messages."""

DIGEST_BYTES = 16

_NOT_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]")
_ENCODER = msgspec.json.Encoder(order="sorted")


def digest_message(raw: bytes | memoryview) -> MessageDigest:
    """Digest of a message's bytes as the client sent them."""
    return sha256(raw).digest()[:DIGEST_BYTES]


def digest_head(model: str, tools: bytes | None) -> bytes:
    """Digest of what stands before all messages: the model and the tools as sent."""
    hasher = sha256(model.encode())
    hasher.update(b"\x00" if tools is None else b"\x01" + tools)
    return hasher.digest()[:DIGEST_BYTES]


def digest_loosely(raw: bytes | memoryview) -> MessageDigest:
    """Digest of a message without what clients change when they send their history again.

    Ignored: key order, white space around content, reasoning, ``name`` (of tool results), everything but letters and
    digits in tool-call ids, how tool-call arguments are written. A message that is not a JSON object keeps its bytes.
    """
    fields = decode_fields(raw)
    return digest_message(raw) if fields is None else digest_message(_ENCODER.encode(_meaning(fields)))


def decode_fields(raw: bytes | memoryview) -> dict[str, object] | None:
    """The message as a dict, or ``None`` if it is not a JSON object."""
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return None


def text_of(content: object) -> str:
    """The text of a ``content`` field: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return ""


def _meaning(fields: dict[str, object]) -> list[object]:
    content = fields.get("content")
    other_parts = (
        [part for part in content if not (isinstance(part, dict) and part.get("type") == "text")]
        if isinstance(content, list)
        else []
    )
    calls = fields.get("tool_calls")
    return [
        fields.get("role"),
        text_of(content).strip(),
        other_parts,
        [_call(call) for call in calls] if isinstance(calls, list) else [],
        _bare_id(fields.get("tool_call_id")),
    ]


def _call(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    return [_bare_id(call.get("id")), function.get("name"), parse_arguments(function.get("arguments"))]


def parse_arguments(arguments: object) -> object:
    """Tool-call arguments as a value; text that is not JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return arguments


def _bare_id(value: object) -> object:
    return _NOT_ALPHANUMERIC.sub("", value) if isinstance(value, str) else value

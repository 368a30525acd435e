"""Looking into single messages: their text, and rewriting a list of them where a policy asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from governor.wire.jsonobject import JsonObject

_ANY = msgspec.json.Decoder()
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_INSTRUCTION_ROLES = frozenset({"system", "developer"})


def decode(raw: msgspec.Raw | bytes | None) -> Any:
    """The value, or ``None`` where it is absent or too odd to read."""
    try:
        return None if raw is None else _ANY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def text_of(raw: msgspec.Raw | bytes | None) -> str:
    """All text of a message, of a bare content value, or of a list of parts; ``""`` where there is none."""
    return text_in(decode(raw))


def text_in(value: Any) -> str:
    """The same of a decoded value."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text for part in value if (text := text_in(part)))
    if isinstance(value, dict):
        return text_in(value.get("text") if "text" in value else value.get("content"))
    return ""


def joined(messages: Sequence[bytes | msgspec.Raw]) -> bytes:
    """A JSON list of these messages, each as its own bytes."""
    return b"[" + b",".join(bytes(message) for message in messages) + b"]"


def with_one_system(messages: Sequence[bytes | msgspec.Raw], roles: Sequence[str]) -> list[bytes]:
    """All ``system`` and ``developer`` messages merged, in order, into one leading ``system`` message."""
    instructions = [decode(m) for m, role in zip(messages, roles, strict=True) if role in _INSTRUCTION_ROLES]
    others = [bytes(m) for m, role in zip(messages, roles, strict=True) if role not in _INSTRUCTION_ROLES]
    contents = [message.get("content") for message in instructions]
    if all(isinstance(content, str) for content in contents):
        merged: Any = "\n\n".join(contents)
    else:
        merged = []
        for content in contents:
            merged += content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return [msgspec.json.encode({"role": "system", "content": merged}), *others]


def without_reasoning(messages: Sequence[bytes | msgspec.Raw], roles: Sequence[str]) -> list[bytes]:
    """Assistant messages without their reasoning, all else byte for byte. Raises ``BadRequest`` on a repeated key."""
    return [
        JsonObject(bytes(raw)).edited(dict.fromkeys(_REASONING_FIELDS)) if role == "assistant" else bytes(raw)
        for raw, role in zip(messages, roles, strict=True)
    ]

"""Chat messages as compression sees them: a few fields read, every byte kept; and the same message with other content.

Contents stay undecoded until a stage needs one: a history is up to a megabyte, and as text it may take four times that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from sys import intern
from typing import Any

import msgspec

from governor.errors import BadRequest
from governor.wire.jsonobject import JsonObject
from governor.wire.messages import decode

_ABSENT = msgspec.Raw(b"")
_BRACKET = ord("[")
_NOTHING = frozenset({b"", b"null", b'""', b"[]", b"{}"})
INSTRUCTION_ROLES = frozenset({"system", "developer"})
RESULT_ROLES = frozenset({"tool", "function"})


class Message(msgspec.Struct, gc=False):
    """The fields of one message that decide what may become of it. What is absent is empty; a role or an id that is not
    text is ``None``."""

    role: Any = None
    content: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    tool_call_id: Any = None
    reasoning_content: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT
    reasoning_details: msgspec.Raw = _ABSENT

    @property
    def has_calls(self) -> bool:
        """It asks for tools to be run."""
        if self.tool_calls is _ABSENT and self.function_call is _ABSENT:
            return False
        return not (is_empty(self.tool_calls) and is_empty(self.function_call))

    @property
    def is_result(self) -> bool:
        return self.role in RESULT_ROLES

    @property
    def is_instruction(self) -> bool:
        return self.role in INSTRUCTION_ROLES


_MESSAGE = msgspec.json.Decoder(Message)
_UNREADABLE = Message()
_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


def read_message(raw: bytes | msgspec.Raw) -> Message:
    """The message; one without a role where it is not a JSON object, so that nothing touches it."""
    try:
        message = _MESSAGE.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNREADABLE
    message.role = intern(message.role) if isinstance(message.role, str) else None
    if not isinstance(message.tool_call_id, str):
        message.tool_call_id = None
    return message


def is_empty(value: msgspec.Raw) -> bool:
    """Absent, null, or an empty text, list or object."""
    return value is _ABSENT or (len(memoryview(value)) <= 4 and bytes(value) in _NOTHING)


def is_list(content: msgspec.Raw) -> bool:
    """The content is a list of parts, not a text."""
    return content is not _ABSENT and memoryview(content)[0] == _BRACKET


def size_bytes(value: msgspec.Raw) -> int:
    return len(memoryview(value))


def handle_of(*values: msgspec.Raw | bytes) -> str:
    """The name under which the archive keeps these bytes: a hash of them, 64 bits of it."""
    hasher = sha256()
    for value in values:
        hasher.update(value)
    return f"gov-{hasher.hexdigest()[:16]}"


def with_fields(raw: bytes | msgspec.Raw, changes: Mapping[str, bytes | None]) -> bytes | None:
    """The message with these fields set, or removed, and all else byte for byte; ``None`` where it repeats a key."""
    try:
        return JsonObject(bytes(raw)).edited(changes)
    except BadRequest:
        return None


def text_of(content: msgspec.Raw) -> str:
    """All text of a content, one part a line."""
    value = decode(content)
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def with_text(content: msgspec.Raw, text: str) -> bytes:
    """A content of the same shape that has only this text."""
    return msgspec.json.encode([{"type": "text", "text": text}] if is_list(content) else text)


def edit_texts(content: msgspec.Raw, edit: Callable[[str], str]) -> bytes | None:
    """The content with each of its texts edited, all else byte for byte; ``None`` where nothing changed."""
    if not is_list(content):
        value = decode(content)
        text = edit(value) if isinstance(value, str) else value
        return None if text == value else msgspec.json.encode(text)

    def part(raw: msgspec.Raw) -> bytes | None:
        value = decode(raw)
        text = value.get("text") if isinstance(value, dict) else None
        edited = edit(text) if isinstance(text, str) else text
        return None if edited == text else with_fields(raw, {"text": msgspec.json.encode(edited)})

    return edit_parts(content, part)


def edit_parts(content: msgspec.Raw, edit: Callable[[msgspec.Raw], bytes | None]) -> bytes | None:
    """A content that is a list, with each part edited (``None``: it stays); ``None`` where nothing changed."""
    try:
        parts = _PARTS.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return None
    edited = [edit(part) for part in parts]
    if not any(edited):
        return None
    return b"[" + b",".join(bytes(old) if new is None else new for old, new in zip(parts, edited, strict=True)) + b"]"

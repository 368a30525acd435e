"""What left a prompt as text: a content as itself, messages role by role. Pure.

It lives here because the archive keeps JSON as it came, and both the owner and the model are to read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_REASONING = ("reasoning_content", "reasoning")
_DECODER = json.JSONDecoder()


def left_text(body: bytes, media_hint: str = "") -> str:
    """The text, control characters included. What is no JSON comes as the text that it is. ``media_hint``: where a
    reader finds what is no text."""
    text = body.decode("utf-8", "replace")
    try:
        values = list(_values(text))
    except (ValueError, RecursionError):
        return text
    return "\n\n".join(_value(value, media_hint) for value in values)


def _values(text: str) -> Iterator[Any]:
    """One JSON value after another."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = _DECODER.raw_decode(text, at)
        yield value


def _value(value: Any, media_hint: str) -> str:
    if _is_message(value):
        return _message(value, media_hint)
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return "\n\n".join(_message(message, media_hint) for message in value)
    return _content(value, media_hint)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _message(message: dict[str, Any], media_hint: str) -> str:
    named = [str(message[key]) for key in ("name", "tool_call_id") if message.get(key)]
    lines = [f"--- {' '.join([message['role'], *named])}"]
    lines += [f"(reasoning) {_content(message[key], media_hint)}" for key in _REASONING if message.get(key)]
    if message.get("content"):
        lines.append(_content(message["content"], media_hint))
    calls = message.get("tool_calls")
    lines += [_call(call) for call in calls] if isinstance(calls, list) else []
    return "\n".join(lines)


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _json(call)
    return f"-> {function.get('name')}({function.get('arguments', '')})"


def _content(content: Any, media_hint: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part, media_hint) for part in content)
    return _json(content)


def _part(part: Any, media_hint: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and isinstance(part.get("type"), str) and "text" not in part["type"]:
        return f"[{part['type']}, {len(json.dumps(part)):,} characters{media_hint}]"
    return _json(part)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)

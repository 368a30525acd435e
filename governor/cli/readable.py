"""What left a prompt, as a person reads it: a content as text, messages role by role. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from governor.visible import visible_lines

_REASONING = ("reasoning_content", "reasoning")
_DECODER = json.JSONDecoder()


def readable(body: bytes) -> str:
    """Safe to print. What is no JSON comes as the text that it is."""
    text = body.decode("utf-8", "replace")
    try:
        values = list(_values(text))
    except (ValueError, RecursionError):
        return visible_lines(text)
    return visible_lines("\n\n".join(_value(value) for value in values))


def _values(text: str) -> Iterator[Any]:
    """One JSON value after another."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = _DECODER.raw_decode(text, at)
        yield value


def _value(value: Any) -> str:
    if _is_message(value):
        return _message(value)
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return "\n\n".join(_message(message) for message in value)
    return _content(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _message(message: dict[str, Any]) -> str:
    named = [str(message[key]) for key in ("name", "tool_call_id") if message.get(key)]
    lines = [f"--- {' '.join([message['role'], *named])}"]
    lines += [f"(reasoning) {_content(message[key])}" for key in _REASONING if message.get(key)]
    if message.get("content"):
        lines.append(_content(message["content"]))
    calls = message.get("tool_calls")
    lines += [_call(call) for call in calls] if isinstance(calls, list) else []
    return "\n".join(lines)


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _json(call)
    return f"-> {function.get('name')}({function.get('arguments', '')})"


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return _json(content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and isinstance(part.get("type"), str) and "text" not in part["type"]:
        return f"[{part['type']}, {len(json.dumps(part)):,} characters: --raw prints it]"
    return _json(part)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)

"""Whether a client's message is the answer that it was shown, apart from how clients write down their history. Pure.

Clients are not to be trusted with it, only to be read: what is called the same here is continued from the tokens that
the engine wrote, so any change of meaning has to be found. Harmless are, as Hermes Agent 0.19.0 and OpenClaw 2026.9.6
were recorded to do it: reasoning that is left out, or stands in another field or before the content; white space at the
ends of a text; tool-call arguments written in another way (order of keys, spaces, 1.0 as 1); tool-call ids without
their punctuation; an empty content that is null, absent or an empty list; text as a list of parts; fields of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_REASONING = ("reasoning_content", "reasoning")
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)\Z", re.DOTALL)
_KNOWN = frozenset({"role", "content", "tool_calls", *_REASONING})
_KNOWN_IN_CALL = frozenset({"id", "type", "index", "function"})
_KNOWN_IN_FUNCTION = frozenset({"name", "arguments"})
_NOT_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]")
_EXACT_BELOW = 2.0**53
"""Below it each whole number has one double."""


def difference(shown: Mapping[str, Any], sent: Mapping[str, Any]) -> str | None:
    """What a client changed of its answer; ``None`` if it is the same. Both are assistant messages of a chat, decoded:
    ``shown`` as it was put together from the answer, ``sent`` as it came back."""
    if sent.get("role") != "assistant":
        return "role"
    odd = next((name for name, value in sent.items() if name not in _KNOWN and value not in (None, "", [], {})), None)
    if odd is not None:
        return odd
    return (
        _differs_in_content(shown, sent)
        or _differs_in_reasoning(shown, sent)
        or _differs_in_calls(shown.get("tool_calls"), sent.get("tool_calls"))
    )


def _differs_in_content(shown: Mapping[str, Any], sent: Mapping[str, Any]) -> str | None:
    was, now = _text(shown.get("content")), _text(sent.get("content"))
    if was is None or now is None:
        return "content"
    if was.strip() == now.strip():
        return None
    thought = _THOUGHT.match(now)
    moved = thought is not None and thought[2].strip() == was.strip() and _is_reasoning(shown, thought[1])
    return None if moved else "content"


def _differs_in_reasoning(shown: Mapping[str, Any], sent: Mapping[str, Any]) -> str | None:
    for name in _REASONING:
        now = sent.get(name)
        if now is not None and now != "" and not (isinstance(now, str) and _is_reasoning(shown, now)):
            return name
    return None


def _is_reasoning(shown: Mapping[str, Any], text: str) -> bool:
    was = shown.get("reasoning_content")
    return isinstance(was, str) and was.strip() == text.strip()


def _text(content: object) -> str | None:
    """``None`` where it is not text alone."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    is_text = len(parts) == len(content) and all(part.get("type") == "text" for part in content)
    return "".join(parts) if is_text else None


def _differs_in_calls(shown: object, sent: object) -> str | None:
    was, now = shown or [], sent or []
    if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
        return "tool_calls"
    for number, (one, other) in enumerate(zip(was, now, strict=True)):
        field = _differs_in_call(one, other)
        if field is not None:
            return f"tool_calls[{number}]{field}"
    return None


def _differs_in_call(shown: object, sent: object) -> str | None:
    if not isinstance(shown, dict) or not isinstance(sent, dict):
        return ""
    was, now = shown.get("function"), sent.get("function")
    if not isinstance(was, dict) or not isinstance(now, dict):
        return ".function"
    for fields, known in ((sent, _KNOWN_IN_CALL), (now, _KNOWN_IN_FUNCTION)):
        odd = next((name for name, value in fields.items() if name not in known and value is not None), None)
        if odd is not None:
            return f".{odd}"
    if sent.get("type", "function") != "function":
        return ".type"
    if _bare(shown.get("id")) != _bare(sent.get("id")):
        return ".id"
    if was.get("name") != now.get("name"):
        return ".name"
    return None if _same_arguments(was.get("arguments"), now.get("arguments")) else ".arguments"


def _bare(id_: object) -> object:
    return _NOT_ALPHANUMERIC.sub("", id_) if isinstance(id_, str) else id_


def _same_arguments(was: object, now: object) -> bool:
    if not isinstance(was, str) or not isinstance(now, str):
        return False
    if was == now:
        return True
    try:
        return _same_value(msgspec.json.decode(was), msgspec.json.decode(now))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _same_value(was: Any, now: Any) -> bool:
    """Equal as JSON: an order of keys means nothing, ``true`` is not 1, and 1.0 is 1."""
    if isinstance(was, dict) and isinstance(now, dict):
        return was.keys() == now.keys() and all(_same_value(value, now[key]) for key, value in was.items())
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(_same_value, was, now))
    was, now = _whole(was), _whole(now)
    return type(was) is type(now) and bool(was == now)


def _whole(value: Any) -> Any:
    """JavaScript writes 1.0 as 1."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_BELOW else value

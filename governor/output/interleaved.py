"""What a person says while tools run stands between a call and its result, which strict engines refuse: a place for it
behind the results. Pure.

Only what stands between an assistant's calls and the next assistant message is looked at, so a group comes out the same
on every later turn. Ids are read as ``governor.compress.rounds`` reads them: with and without punctuation, and a result
whose id is unknown belongs to the first call that has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from governor.wire.messages import decode
from serve.engine import Endpoint

Raw = bytes | msgspec.Raw

_CHAT_KINDS = {"assistant": "a", "tool": "r", "function": "r"}
_GROUP = re.compile(r"(?<!a)(a+)[rw]*wr+")
"""Calls, then words (``w``) and results (``r``) up to the last result that follows a word."""
_NOT_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]")
_WORD_ROLES = frozenset({"user", "system", "developer"})
_ANTHROPIC_RESULT = b'"tool_result"'
"""In the text of a message these quotes are escaped."""


class Repair(msgspec.Struct, frozen=True):
    """The messages in another order."""

    order: tuple[int, ...]
    """Index that each message had."""
    moved: tuple[int, ...]
    """Of those that were moved."""
    results: int
    """Of the groups that were repaired."""


class _Item(msgspec.Struct):
    type: Any = None
    role: Any = None


_ITEM = msgspec.json.Decoder(_Item)


def repair(endpoint: Endpoint, messages: Sequence[Raw], roles: Sequence[str]) -> Repair | None:
    """``None``: nothing stands between a call and its result. Linear; messages are read only where something may."""
    kinds = _kinds(endpoint, messages, roles)
    if "wr" not in kinds:
        return None
    order = list(range(len(messages)))
    moved: list[int] = []
    results = 0
    for group in _GROUP.finditer(kinds):
        start, end = group.end(1), group.end()
        calls = [call for index in range(group.start(), start) for call in _calls(decode(messages[index]))]
        end = _last_own(messages, kinds, calls, start, end)
        words = [index for index in range(start, end) if kinds[index] == "w"]
        if words:
            answers = [index for index in range(start, end) if kinds[index] == "r"]
            order[start:end] = answers + words
            moved += words
            results += len(answers)
    return Repair(tuple(order), tuple(moved), results) if moved else None


def _last_own(messages: Sequence[Raw], kinds: str, calls: Sequence[str], start: int, end: int) -> int:
    """Index behind the last result of these calls."""
    numbers: dict[str, int] = {}
    for place, call in enumerate(calls):
        if call:
            numbers[call] = numbers[_bare(call)] = place
    open_calls = dict.fromkeys(range(len(calls)))
    last = start
    for index in range(start, end):
        if kinds[index] != "r":
            continue
        for answered in _answers(decode(messages[index])):
            known = numbers.get(answered, numbers.get(_bare(answered))) if answered else None
            number: int | None = next(iter(open_calls), None) if known is None else known
            if number is not None:
                open_calls.pop(number, None)
                last = index + 1
    return last


def _kinds(endpoint: Endpoint, messages: Sequence[Raw], roles: Sequence[str]) -> str:
    """A letter a message: ``a`` the model's, ``r`` a result, ``w`` a word of somebody else."""
    if endpoint is Endpoint.RESPONSES:
        return "".join(map(_item_kind, messages))
    kinds = "".join([_CHAT_KINDS.get(role, "w") for role in roles])
    if endpoint is Endpoint.CHAT or "ww" not in kinds:
        return kinds
    return "".join("r" if kind == "w" and _is_result(raw) else kind for kind, raw in zip(kinds, messages, strict=True))


def _item_kind(raw: Raw) -> str:
    try:
        item = _ITEM.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return "w"
    if item.role in _WORD_ROLES:
        return "w"
    return "r" if isinstance(item.type, str) and item.type.endswith("_output") else "a"


def _is_result(raw: Raw) -> bool:
    return _ANTHROPIC_RESULT in bytes(raw) and bool(_answers(decode(raw)))


def _calls(message: Any) -> list[str]:
    """Ids of the calls in a message or item of any dialect; ``""`` for one without."""
    if not isinstance(message, dict):
        return []
    found = [_text(call.get("id")) for call in _dicts(message.get("tool_calls"))]
    if message.get("function_call"):
        found.append("")
    found += [_text(block.get("id")) for block in _dicts(message.get("content")) if block.get("type") == "tool_use"]
    if isinstance(message.get("type"), str) and message["type"].endswith("_call"):
        found.append(_text(message.get("call_id")))
    return found


def _answers(message: Any) -> list[str]:
    """Ids of the calls that a message or item answers; ``""`` for a result that names none."""
    if not isinstance(message, dict):
        return []
    if message.get("role") in ("tool", "function"):
        return [_text(message.get("tool_call_id"))]
    if isinstance(message.get("type"), str) and message["type"].endswith("_output"):
        return [_text(message.get("call_id"))]
    blocks = _dicts(message.get("content"))
    return [_text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _bare(call_id: str) -> str:
    return call_id if call_id.isalnum() else _NOT_ALPHANUMERIC.sub("", call_id)

"""Why two prompts of one conversation stop being equal where they do. Pure.

The engine's cache is lost from that place on, so the place and its likely cause are worth a name. Causes follow what
Hermes Agent 0.19.0 and OpenClaw 2026.9.6 were recorded to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from governor.tokens.digests import decode_fields, digest_loosely, digest_message, parse_arguments, text_of
from governor.tokens.volatile import volatile_changes
from governor.wire.messages import decode

CARRIER_MARK = b"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
_SUMMARY_MARKS = (b"[CONTEXT COMPACTION", b"The conversation history before this point was compacted")


class BreakCause(StrEnum):
    """The likely cause of a broken prefix."""

    TOOLS_CHANGED = "tools_changed"
    TOOL_ORDER = "tool_order"
    """The same tools in another order."""
    MODEL_CHANGED = "model_changed"
    SYSTEM_CHANGED = "system_changed"
    VOLATILE = "volatile"
    """A system prompt that differs only in digits, dates or ids: a clock, a counter, a nonce."""
    REASONING_DROPPED = "reasoning_dropped"
    TOOL_NAME_DROPPED = "tool_name_dropped"
    ARGUMENTS_RESERIALISED = "arguments_reserialised"
    REFORMATTED = "reformatted"
    """The same meaning in other bytes: white space, key order, ids."""
    CARRIER_MOVED = "carrier_moved"
    """OpenClaw's trailing context message went to the new end, as it does on every request."""
    COMPACTED = "compacted"
    """The middle of the history was replaced and its end kept."""
    EDITED = "edited"
    UNKNOWN = "unknown"
    """The earlier bytes are no longer held."""


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """The first place at which a prompt differs from what its session sent before."""

    cause: BreakCause
    message: int | None = None
    """Index of the first message that differs; ``None`` when the difference is before all messages."""
    byte: int | None = None
    """Offset of the first differing byte in that message's JSON (or in the tools); ``None`` if not known."""
    detail: str = ""

    def __str__(self) -> str:
        place = "tools" if self.message is None else f"message {self.message}"
        offset = "" if self.byte is None else f", byte {self.byte}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{place}{offset}: {self.cause}{detail}"


def diagnose_messages(before: Sequence[bytes] | None, now: Sequence[bytes], at: int) -> Break:
    """The break at message ``at``, where ``before`` and ``now`` first differ; ``before`` is ``None`` if not held.

    Parses the differing messages, and the rest only as far as needed to see a compaction.
    """
    if before is None:
        return Break(cause=BreakCause.UNKNOWN, message=at)
    old, new = before[at], now[at]
    byte = first_difference(old, new)
    if at == len(before) - 1 and len(now) > len(before) and CARRIER_MARK in old:
        return Break(cause=BreakCause.CARRIER_MOVED, message=at, byte=byte)
    cause = _cause(old, new, may_be_system=at == 0 and len(now) > 1)
    if cause is BreakCause.EDITED and (any(mark in new for mark in _SUMMARY_MARKS) or _keeps_tail(before, now, at)):
        cause = BreakCause.COMPACTED
    return Break(cause=cause, message=at, byte=byte)


def diagnose_tools(before: bytes | None, now: bytes | None) -> Break:
    """The break before all messages, given the tools as they were and are."""
    if before == now:
        return Break(cause=BreakCause.MODEL_CHANGED)
    byte = first_difference(before or b"", now or b"")
    old, new = _tools(before), _tools(now)
    if sorted(old.values()) == sorted(new.values()):
        return Break(cause=BreakCause.TOOL_ORDER, byte=byte)
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    detail = "; ".join(
        f"{verb} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        for verb, names in (("without", gone), ("with", added))
        if names
    )
    return Break(cause=BreakCause.TOOLS_CHANGED, byte=byte, detail=detail)


def first_difference(one: bytes, other: bytes) -> int:
    """Offset of the first differing byte; the shorter length if one begins the other."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cause(old_raw: bytes, new_raw: bytes, *, may_be_system: bool) -> BreakCause:
    """``may_be_system``: a value that is no message is the system prompt of a dialect that keeps it elsewhere."""
    old, new = decode_fields(old_raw), decode_fields(new_raw)
    if may_be_system and old is None and new is None:
        return _system_cause(decode(old_raw), decode(new_raw))
    if old is None or new is None or old.get("role") != new.get("role"):
        return BreakCause.EDITED
    if digest_loosely(old_raw) == digest_loosely(new_raw):
        return _harmless_cause(old, new)
    if old.get("role") in ("system", "developer"):
        return _system_cause(old.get("content"), new.get("content"))
    return BreakCause.EDITED


def _system_cause(old: object, new: object) -> BreakCause:
    changes = volatile_changes(text_of(old), text_of(new))
    return BreakCause.SYSTEM_CHANGED if changes is None else BreakCause.VOLATILE


def _harmless_cause(old: dict[str, object], new: dict[str, object]) -> BreakCause:
    if any(old.get(key) and not new.get(key) for key in ("reasoning_content", "reasoning")):
        return BreakCause.REASONING_DROPPED
    if "name" in old and "name" not in new:
        return BreakCause.TOOL_NAME_DROPPED
    before, now = _arguments(old), _arguments(new)
    if before != now and [parse_arguments(text) for text in before] == [parse_arguments(text) for text in now]:
        return BreakCause.ARGUMENTS_RESERIALISED
    return BreakCause.REFORMATTED


def _arguments(fields: dict[str, object]) -> list[object]:
    calls = fields.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [function.get("arguments") for function in functions if isinstance(function, dict)]


_TAIL_MESSAGES = 6


def _keeps_tail(before: Sequence[bytes], now: Sequence[bytes], at: int) -> bool:
    """True if what stood at the end of ``before`` (a carrier aside) stands in ``now`` nearer to the front."""
    last = len(before) - (2 if CARRIER_MARK in before[-1] else 1)
    tail = {digest_loosely(before[index]): index for index in range(max(at, last - _TAIL_MESSAGES), last + 1)}
    return any(tail.get(digest_loosely(raw), -1) > index for index, raw in enumerate(now) if index >= at)


def _tools(raw: bytes | None) -> dict[str, bytes]:
    """Digest of each tool by its name (or its place, where it has none)."""
    if raw is None:
        return {}
    try:
        tools = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return {"": digest_message(raw)}
    found: dict[str, bytes] = {}
    for place, tool in enumerate(tools):
        fields = decode_fields(bytes(tool)) or {}
        function = fields.get("function")
        name = function.get("name") if isinstance(function, dict) else fields.get("name")
        found[str(name) if name and str(name) not in found else f"#{place}"] = digest_message(bytes(tool))
    return found

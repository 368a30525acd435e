"""What a strict server asks of a list of chat messages: readable JSON, known roles, calls with their results.

It knows nothing of rounds or stages, so that it can judge what they made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from governor.compress.messages import Message, is_empty
from governor.wire.messages import decode
from governor.wire.request import ROLES


class Violation(msgspec.Struct, frozen=True):
    """One fault of the message at ``index``."""

    index: int
    rule: str

    def __str__(self) -> str:
        return f"messages[{self.index}]: {self.rule}"


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


_SOUND = frozenset({"user", "assistant", "tool", "system"})
"""With a text as content there is nothing more to ask of these."""
_CALLS = msgspec.json.Decoder(list[_Call])


def violations(messages: Iterable[Message]) -> Iterator[Violation]:
    """Every fault, in order."""
    awaited: set[str] = set()
    asked_at = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id in awaited:
                awaited.remove(message.tool_call_id)
            else:
                yield Violation(index, "a result that answers no call before it")
        else:
            if awaited:
                yield Violation(asked_at, "calls without results directly after them")
            awaited, asked_at = set(), index
        if message.role == "assistant":
            calls = _calls(message)
            if calls is None:
                yield Violation(index, "tool_calls that cannot be read")
                continue
            awaited = {call.id for call in calls}
            if len(awaited) < len(calls):
                yield Violation(index, "two calls with one id")
            if any(decode(call.function.arguments.encode()) is None for call in calls):
                yield Violation(index, "arguments that are not JSON")
        if message.role not in _SOUND or bytes(memoryview(message.content)[:1]) != b'"':
            yield from _own_faults(index, message)
    if awaited:
        yield Violation(asked_at, "calls without results directly after them")


def new_rules_broken(before: Iterable[Message], after: Iterable[Message]) -> tuple[str, ...]:
    """Rules that ``after`` breaks more often than ``before``."""
    broken = Counter(each.rule for each in violations(after))
    if not broken:
        return ()
    return tuple(broken - Counter(each.rule for each in violations(before)))


def _calls(message: Message) -> list[_Call] | None:
    if is_empty(message.tool_calls):
        return []
    try:
        return _CALLS.decode(message.tool_calls)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _own_faults(index: int, message: Message) -> Iterator[Violation]:
    if message.role not in ROLES:
        yield Violation(index, "not a message with a known role")
        return
    content = bytes(memoryview(message.content)[:1])
    if content not in {b"", b"n", b'"', b"["}:
        yield Violation(index, "content that is neither text nor a list")
    elif content == b"[" and not _are_parts(decode(message.content)):
        yield Violation(index, "content parts that have no type")
    if content in {b"", b"n"} and not message.has_calls:
        yield Violation(index, "neither content nor calls")


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in value
    )

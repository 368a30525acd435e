"""A chat history as rounds, and what of it may be touched.

A *unit* never parts: an assistant message with all results of its calls and whatever stands between them, or any other
message by itself. A *round* begins with the user's word (consecutive ones count as one) and ends before the next.

Call ids are not unique: clients use ``call_0`` in each round, or send an id on with its punctuation taken out. A result
belongs to the latest assistant message that has its id; a result whose id is nowhere goes with the calls it follows.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from governor.compress.messages import RESULT_ROLES, Message
from governor.compress.record import is_record
from governor.tokens.breaks import CARRIER_MARK

_NOT_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]")
_CARRIER_REACH_BYTES = 120
"""The mark opens the content; a person who quotes it does so later."""


class Call(msgspec.Struct, frozen=True):
    """One tool call. ``arguments`` is the text the model wrote, which need not be JSON."""

    id: str
    name: str
    arguments: str


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Messages ``start`` to ``end`` (exclusive) that stay or go together."""

    start: int
    end: int


class Round(msgspec.Struct, frozen=True, gc=False):
    """Units of one round, in order. The first round may lack a user message."""

    units: tuple[Unit, ...]

    @property
    def start(self) -> int:
        return self.units[0].start

    @property
    def end(self) -> int:
        return self.units[-1].end


class Rounds(msgspec.Struct, frozen=True):
    """All messages, each in exactly one unit."""

    rounds: tuple[Round, ...]
    calls: Mapping[int, Call]
    """By index of a result: the call it answers. Results without one are absent."""
    users: tuple[int, ...]
    """Indices of the user's own words; a client's carriers and our records are not among them."""


class Hold(IntEnum):
    """How firmly a message is held, from not at all."""

    FREE = 0
    RECENT = 1
    """Touched when nothing else is left."""
    OPEN = 2
    """A result that the model has not seen yet. Only cut down where it is too large for its room."""
    VERBATIM = 3
    """Never touched."""


class _Function(msgspec.Struct, frozen=True):
    name: Any = None
    arguments: Any = None


class _RawCall(msgspec.Struct):
    id: Any = None
    function: _Function = _Function()


_CALLS = msgspec.json.Decoder(list[_RawCall])
_FUNCTION = msgspec.json.Decoder(_Function)


def calls_of(message: Message) -> list[Call]:
    """The calls of an assistant message; those that cannot be read are left out."""
    if not message.has_calls:
        return []
    try:
        raw = _CALLS.decode(message.tool_calls) if memoryview(message.tool_calls) else []
        if memoryview(message.function_call):
            raw.append(_RawCall(function=_FUNCTION.decode(message.function_call)))
    except (msgspec.MsgspecError, RecursionError):
        return []
    return [_call(each.id, each.function) for each in raw]


def _call(call_id: Any, function: _Function) -> Call:
    texts = (value if isinstance(value, str) else "" for value in (call_id, function.name, function.arguments))
    return Call(*texts)


def is_carrier(message: Message) -> bool:
    """OpenClaw's snapshot of its own state, sent as a user message at the end of each request."""
    return message.role == "user" and CARRIER_MARK in bytes(memoryview(message.content)[:_CARRIER_REACH_BYTES])


class _Asking:
    """The calls of one assistant message, and which of them have no result yet."""

    __slots__ = ("_answered", "_first_open", "calls", "unit")

    def __init__(self, unit: int, calls: Sequence[Call]) -> None:
        self.unit = unit
        self.calls = calls
        self._answered: set[int] = set()
        self._first_open = 0

    def answer(self, number: int) -> Call:
        """Note a result of the call with this number."""
        self._answered.add(number)
        return self.calls[number]

    def first_open(self) -> int | None:
        """Number of the first call without a result."""
        while self._first_open in self._answered:
            self._first_open += 1
        return self._first_open if self._first_open < len(self.calls) else None


def rounds_of(messages: Sequence[Message]) -> Rounds:
    """Linear in the number of messages."""
    starts: list[int] = []
    ends: list[int] = []
    owners: dict[str, tuple[_Asking, int]] = {}
    calls: dict[int, Call] = {}
    users: list[int] = []
    latest: _Asking | None = None
    for index, message in enumerate(messages):
        if message.role not in RESULT_ROLES:
            starts.append(index)
            ends.append(index + 1)
            if message.role == "user":
                if not is_carrier(message) and not is_record(message):
                    users.append(index)
            elif message.role == "assistant":
                latest = _Asking(len(starts) - 1, calls_of(message))
                for number, call in enumerate(latest.calls):
                    if call.id:
                        owners[call.id] = owners[_bare(call.id)] = (latest, number)
            continue
        asking, answered = _owner(message, owners, latest)
        if asking is None or (answered is None and asking.unit < len(starts) - 1):
            starts.append(index)
            ends.append(index + 1)
            continue
        ends[asking.unit] = index + 1
        if answered is not None:
            calls[index] = asking.answer(answered)
    return Rounds(rounds=_grouped(_merged(starts, ends), frozenset(users)), calls=calls, users=tuple(users))


def _owner(
    result: Message, owners: Mapping[str, tuple[_Asking, int]], latest: _Asking | None
) -> tuple[_Asking | None, int | None]:
    """Whose result it is, and the number of the call that it answers."""
    call_id = result.tool_call_id
    known = owners.get(call_id) or owners.get(_bare(call_id)) if call_id else None
    return known or (latest, latest.first_open() if latest is not None else None)


def _bare(call_id: str) -> str:
    return call_id if call_id.isalnum() else _NOT_ALPHANUMERIC.sub("", call_id)


def _merged(starts: Sequence[int], ends: Sequence[int]) -> Iterator[Unit]:
    """Spans that reach into one another as one."""
    start, end = 0, 0
    for next_start, next_end in zip(starts, ends, strict=True):
        if next_start < end:
            end = max(end, next_end)
            continue
        if end:
            yield Unit(start, end)
        start, end = next_start, next_end
    if end:
        yield Unit(start, end)


def _grouped(units: Iterable[Unit], users: Container[int]) -> tuple[Round, ...]:
    groups: list[Round] = []
    group: list[Unit] = []
    after_user = False
    for unit in units:
        is_user = unit.start in users
        if group and is_user and not after_user:
            groups.append(Round(tuple(group)))
            group = []
        group.append(unit)
        after_user = is_user
    if group:
        groups.append(Round(tuple(group)))
    return tuple(groups)


def holds_of(messages: Sequence[Message], rounds: Rounds, sizes: Sequence[int], recent_tokens: int) -> list[Hold]:
    """How firmly each message is held.

    Verbatim: instructions, the first and the last user message, all that follows the last answer or result, the
    assistant message whose results are the last to have come. What is not a readable message, too.
    """
    holds = [Hold.VERBATIM if each.role is None or each.is_instruction else Hold.FREE for each in messages]
    for index in rounds.users[:1] + rounds.users[-1:]:
        holds[index] = Hold.VERBATIM
    end = len(messages)
    while end and messages[end - 1].role != "assistant" and not messages[end - 1].is_result:
        end -= 1
        holds[end] = Hold.VERBATIM
    units = [unit for round_ in rounds.rounds for unit in round_.units]
    _hold_open(messages, units, end, holds)
    left = recent_tokens
    for unit in reversed(units):
        left -= sum(sizes[unit.start : unit.end])
        if left < 0:
            break
        for index in range(unit.start, unit.end):
            holds[index] = max(holds[index], Hold.RECENT)
    return holds


def _hold_open(messages: Sequence[Message], units: Sequence[Unit], end: int, holds: list[Hold]) -> None:
    """Hold the units that end at ``end`` and wait for the model: the last calls with their results, results that answer
    no call, or an answer that the client wants continued."""
    for unit in reversed(units):
        if unit.start >= end:
            continue
        last = [messages[index] for index in range(unit.start, unit.end)]
        is_open = any(each.is_result or each.has_calls for each in last) or end == len(messages)
        if not is_open:
            return
        for index in range(unit.start, unit.end):
            is_result = messages[index].is_result
            holds[index] = max(holds[index], Hold.OPEN if is_result else Hold.VERBATIM)
        if any(each.role == "assistant" for each in last):
            return

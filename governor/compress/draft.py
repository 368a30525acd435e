"""A history while it is made shorter: what each message is by now, what was done, what is still too much.

Stages read a draft and yield edits; only :meth:`Draft.apply` changes it. An edit that frees nothing is not made, so a
draft never grows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from governor.compress.limits import Limits
from governor.compress.messages import Message, handle_of, read_message
from governor.compress.rounds import Hold, Rounds, holds_of, rounds_of
from governor.policy.model import CompressionPolicy, CompressionStage

Raw = bytes | msgspec.Raw
SizeOf = Callable[[bytes], int]
"""Tokens of one message as raw JSON, its framing included."""


class Left(msgspec.Struct, frozen=True):
    """What left the prompt, for the archive."""

    handle: str
    values: tuple[Raw, ...]
    """The bytes as they came: a message's content or reasoning, or several whole messages."""


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One message in a shorter form."""

    stage: CompressionStage
    index: int
    raw: bytes
    why: str
    left: Left


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are left out, and the one that says so."""

    stage: CompressionStage
    indices: tuple[int, ...]
    marker_at: int
    """Index of the message before which the marker stands."""
    marker: bytes
    why: str
    left: Left
    summary: str = ""
    """What the marker tells of them."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit or a removal has freed."""

    stage: CompressionStage
    index: int
    """Of the message as the client sent it; of a removal, the first."""
    freed_tokens: int
    why: str
    handle: str
    """Of what left the prompt by it."""


class Draft:
    """See the module."""

    def __init__(
        self,
        messages: Sequence[Raw],
        sizes: Sequence[int],
        *,
        size_of: SizeOf,
        fixed_tokens: int,
        policy: CompressionPolicy,
        limits: Limits,
    ) -> None:
        self.originals = messages
        self.raws: list[Raw | None] = list(messages)
        """As they are by now; ``None`` where they are left out."""
        self.messages: list[Message] = [read_message(raw) for raw in messages]
        self.sizes = list(sizes)
        self.policy = policy
        self.limits = limits
        self.size_of = size_of
        self.rounds: Rounds = rounds_of(self.messages)
        self.holds: list[Hold] = holds_of(self.messages, self.rounds, sizes, limits.recent_tokens)
        self.reach = Hold.FREE
        """See :meth:`reach_to`."""
        self.marker: tuple[int, bytes] | None = None
        self.summary = ""
        """What the marker tells of what was left out."""
        self.done: list[Done] = []
        self.left: dict[str, Left] = {}
        self.open_results = [index for index, hold in enumerate(self.holds) if hold is Hold.OPEN]
        """Results that the model has not seen."""
        self.before_tokens = fixed_tokens + sum(sizes)
        self.tokens = self.before_tokens
        self._handles: dict[int, str] = {}
        self._protected = self._results_of(policy.protected_tools)
        self.within_reach: list[int] = []
        """Messages that are there and may be left out, the oldest first."""
        self.editable: list[int] = []
        """Those whose content no rule holds."""
        self.reach_to(Hold.FREE)

    @property
    def excess_tokens(self) -> int:
        """Still to be freed for the target and the least gain; 0 or less when both are met."""
        goal = min(self.limits.target_tokens, self.before_tokens - self.limits.gain_tokens)
        return self.tokens - goal

    def reach_to(self, hold: Hold) -> None:
        """From now on, messages held no more firmly than this may be touched."""
        self.reach = hold
        reach = min(hold, Hold.RECENT)
        self.within_reach = [i for i, held in enumerate(self.holds) if held <= reach and self.raws[i] is not None]
        self.editable = [index for index in self.within_reach if index not in self._protected]

    def editable_results(self, over_tokens: int) -> list[int]:
        """Tool results of more than so many tokens among those that may be edited."""
        sizes, messages = self.sizes, self.messages
        return [index for index in self.editable if sizes[index] > over_tokens and messages[index].is_result]

    def large(self) -> list[int]:
        """Messages worth a line in their place, the oldest first."""
        least = self.policy.stub_over_tokens
        return [index for index, size in enumerate(self.sizes) if size > least]

    def is_protected(self, index: int) -> bool:
        """The policy keeps results of this tool as they are."""
        return index in self._protected

    def current(self, index: int) -> Raw:
        """The message as it is by now. Raises ``LookupError`` if it was left out."""
        raw = self.raws[index]
        if raw is None:
            raise LookupError(f"message {index} was left out")
        return raw

    def handle(self, index: int) -> str:
        """The handle of the content as the client sent it, also where it was cut since."""
        handle = self._handles.get(index)
        if handle is None:
            handle = self._handles[index] = handle_of(self.content_as_sent(index))
        return handle

    def content_as_sent(self, index: int) -> msgspec.Raw:
        """The content before any edit."""
        original = self.originals[index]
        return self.messages[index].content if original is self.raws[index] else read_message(original).content

    def apply(self, edit: Edit) -> bool:
        """Put an edit in place if it frees anything, and say whether it did."""
        size = self.size_of(edit.raw)
        freed = self.sizes[edit.index] - size
        if freed <= 0:
            return False
        self.raws[edit.index] = edit.raw
        self.messages[edit.index] = read_message(edit.raw)
        self.sizes[edit.index] = size
        self._book(
            Done(stage=edit.stage, index=edit.index, freed_tokens=freed, why=edit.why, handle=edit.left.handle),
            edit.left,
        )
        return True

    def remove(self, removal: Removal) -> bool:
        """Leave messages out if that frees more than its marker takes, and say whether it did."""
        before = sum(self.sizes[index] for index in removal.indices)
        earlier_marker = self.size_of(self.marker[1]) if self.marker is not None else 0
        freed = before + earlier_marker - self.size_of(removal.marker)
        if freed <= 0:
            return False
        for index in removal.indices:
            self.raws[index] = None
            self.sizes[index] = 0
        self.marker = (removal.marker_at, removal.marker)
        self.summary = removal.summary
        self.reach_to(self.reach)
        first = removal.indices[0]
        self._book(
            Done(stage=removal.stage, index=first, freed_tokens=freed, why=removal.why, handle=removal.left.handle),
            removal.left,
        )
        return True

    def result(self) -> tuple[tuple[Raw, ...], tuple[int | None, ...]]:
        """The messages by now, and for each the index it had; ``None`` for the marker."""
        raws: list[Raw] = []
        origins: list[int | None] = []
        for index, raw in enumerate(self.raws):
            if self.marker is not None and self.marker[0] == index:
                raws.append(self.marker[1])
                origins.append(None)
            if raw is not None:
                raws.append(raw)
                origins.append(index)
        return tuple(raws), tuple(origins)

    def present(self) -> Iterator[Message]:
        """The messages of :meth:`result`, as they are read."""
        for index, raw in enumerate(self.raws):
            if self.marker is not None and self.marker[0] == index:
                yield read_message(self.marker[1])
            if raw is not None:
                yield self.messages[index]

    def _book(self, done: Done, left: Left) -> None:
        self.tokens -= done.freed_tokens
        self.done.append(done)
        self.left[left.handle] = left

    def _results_of(self, tools: Collection[str]) -> frozenset[int]:
        calls = self.rounds.calls
        return frozenset(index for index, call in calls.items() if call.name in tools) if tools else frozenset()

"""What a prompt is made of, by kind, and what a compression could do about it. Pure.

Counting is the caller's: the whole, the tools and each message come with their sizes. Sizes by message need not add up
to the whole: a template leaves old reasoning out, and an estimate is one. What they have too much is taken off the
reasoning before the last user message first. What is then missing is the template's frame, if the sizes are counts of
the model's tokenizer; any other difference is shared by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from governor.compress.anatomy import parts_of, words_of
from governor.compress.cuts import shortened
from governor.compress.draft import SizeOf
from governor.compress.limits import Limits, limits_of
from governor.compress.messages import read_message
from governor.compress.plan import what_each_would_free
from governor.compress.rounds import Hold, holds_of, rounds_of
from governor.context import ContextKind, ContextReport, Held, KindShare, LargeItem, Piece, StageGain
from governor.policy.model import CompressionPolicy, CompressionStage
from governor.tokens.estimate import estimate_text
from governor.types import TokenCount
from governor.visible import visible
from governor.wire.messages import decode

_LONGEST_BEGINNING = 120
_LONGEST_NAME = 60
_UNNAMED = "unnamed"
_BY_POLICY = "policy"
_OF_TOOLS = frozenset({ContextKind.RESULTS, ContextKind.CALLS})
_MOST_FRAME_TOKENS = 64
"""Of a template once a prompt; what it may put between messages is one token each."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its sizes in tokens."""

    messages: Sequence[bytes]
    """Raw JSON, the system prompt first."""
    tools: bytes | None
    total: TokenCount
    sizes: Sequence[int]
    """By message."""
    tools_tokens: int
    counted: bool
    """Sizes are counts of the model's own tokenizer."""


def report_of(
    prompt: Measured,
    *,
    size_of: SizeOf,
    policy: CompressionPolicy,
    window_tokens: int | None,
    engine_tokens: int | None = None,
    top: int = 8,
) -> ContextReport:
    """Report on one prompt; ``top`` bounds the lists of pieces and of messages. Raises nothing: what cannot be read
    counts as the user's.

    ``size_of`` counts one message that is new. ``engine_tokens``: what the engine sees instead, if the prompt was
    compressed.
    """
    total = prompt.total.tokens
    limits = None if window_tokens is None else limits_of(policy, window_tokens)
    whole = _Whole(prompt)
    sizes = whole.sizes
    holds = whole.holds(0 if limits is None else limits.recent_tokens, policy.protected_tools)
    return ContextReport(
        messages=len(prompt.messages),
        tool_schemas=len(whole.schemas),
        tokens=total,
        margin=prompt.total.upper - total,
        margin_below=total - prompt.total.lower,
        source=prompt.total.source,
        exact_parts=whole.exact,
        client_tokens=total,
        engine_tokens=engine_tokens,
        window_tokens=window_tokens,
        trigger_tokens=None if limits is None else limits.trigger_tokens,
        target_tokens=None if limits is None else limits.target_tokens,
        mode=policy.mode.value,
        kinds=whole.kinds(top),
        largest=_largest(whole, holds, top),
        held=_held(holds, sizes, total),
        stages=None if limits is None or not whole.is_chat else _stages(prompt, sizes, size_of, policy, limits),
    )


class _Whole:
    """The parts of all messages, and the tokens that each takes of the whole."""

    def __init__(self, prompt: Measured) -> None:
        self.messages = prompt.messages
        self.read = [read_message(raw) for raw in prompt.messages]
        self.rounds = rounds_of(self.read)
        self.schemas = _schemas(prompt.tools)
        calls: dict[str, str] = {}
        self.parts = [parts_of(raw, calls, self.tool_of(index)) for index, raw in enumerate(prompt.messages)]
        self.is_chat = not calls and all(each.role is not None for each in self.read)
        self._last_user = max(self.rounds.users, default=0)
        split, frame, self.exact = self._split(prompt)
        *self.tokens, tools = split
        self.sizes = [sum(each) for each in self.tokens]
        self._rest = [(ContextKind.TOOLS, name, tokens) for (name, _), tokens in zip(self.schemas, tools, strict=False)]
        if tools and not self.schemas and tools[0]:
            self._rest.append((ContextKind.TOOLS, "", tools[0]))
        if frame:
            self._rest.append((ContextKind.FRAME, "", frame))

    def tool_of(self, index: int) -> str:
        """The tool whose result a message is."""
        call = self.rounds.calls.get(index)
        return "" if call is None else call.name

    def holds(self, recent_tokens: int, protected_tools: Sequence[str]) -> list[str]:
        """How firmly each message is held, in the words of :class:`~governor.context.LargeItem`."""
        holds = holds_of(self.read, self.rounds, self.sizes, recent_tokens)
        return [
            _BY_POLICY if hold < Hold.OPEN and self.tool_of(index) in protected_tools else hold.name.lower()
            for index, hold in enumerate(holds)
        ]

    def kinds(self, top: int) -> tuple[KindShare, ...]:
        found: dict[ContextKind, dict[str, list[int]]] = {}
        for kind, name, tokens, items in self._all():
            piece = found.setdefault(kind, {}).setdefault(name, [0, 0])
            piece[0] += tokens
            piece[1] += items
        return tuple(_share(kind, found[kind], top) for kind in ContextKind if kind in found)

    def _all(self) -> Iterator[tuple[ContextKind, str, int, int]]:
        for parts, tokens in zip(self.parts, self.tokens, strict=True):
            for part, part_tokens in zip(parts, tokens, strict=True):
                yield part.kind, part.name, part_tokens, part.items
        for kind, name, rest_tokens in self._rest:
            yield kind, name, rest_tokens, 1

    def _split(self, prompt: Measured) -> tuple[list[list[int]], int, bool]:
        """Tokens of each part of each message and, as the last list, of each tool; those of the frame; and whether
        these are counts."""
        sizes = prompt.sizes if self.is_chat else [round(sum(part.weight for part in parts)) for parts in self.parts]
        split = [
            _portions(size, [part.weight for part in parts]) for size, parts in zip(sizes, self.parts, strict=True)
        ]
        split.append(_portions(prompt.tools_tokens, [weight for _, weight in self.schemas] or [1.0]))
        excess = sum(map(sum, split)) - prompt.total.tokens
        if excess > 0:
            excess -= self._leave_old_reasoning_out(split, excess)
        if prompt.counted and self.is_chat and 0 <= -excess <= _MOST_FRAME_TOKENS + len(prompt.messages):
            return split, -excess, True
        flat = _portions(prompt.total.tokens, [float(tokens) for each in split for tokens in each])
        ends = accumulate(map(len, split))
        return [flat[end - len(each) : end] for each, end in zip(split, ends, strict=True)], 0, False

    def _leave_old_reasoning_out(self, split: list[list[int]], most: int) -> int:
        """Take reasoning that a template may leave out off the sizes, the oldest first; says how much it was."""
        left = most
        for tokens, parts in zip(split[: self._last_user], self.parts, strict=False):
            for number, part in enumerate(parts):
                if part.kind is ContextKind.REASONING:
                    less = min(tokens[number], left)
                    tokens[number] -= less
                    left -= less
        return most - left


def _portions(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to the total; nothing where there is no weight."""
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    edges = [round(total * edge / whole) for edge in accumulate(weights)]
    return [edge - before for edge, before in zip(edges, [0, *edges[:-1]], strict=True)]


def _share(kind: ContextKind, pieces: Mapping[str, Sequence[int]], top: int) -> KindShare:
    """Pieces are shown where there is a name to tell them by."""
    ordered = sorted(pieces.items(), key=lambda piece: -piece[1][0]) if set(pieces) != {""} else []
    return KindShare(
        kind=kind,
        tokens=sum(tokens for tokens, _ in pieces.values()),
        items=sum(items for _, items in pieces.values()),
        pieces=tuple(
            Piece(name=visible(name, _LONGEST_NAME) or _UNNAMED, tokens=tokens, items=items)
            for name, (tokens, items) in ordered[:top]
        ),
        more_pieces=max(0, len(ordered) - top),
    )


def _schemas(tools: bytes | None) -> list[tuple[str, float]]:
    """Name and weight of each."""
    try:
        schemas = msgspec.json.decode(tools or b"[]", type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [(_schema_name(decode(raw)), max(1.0, estimate_text(bytes(raw)).usual)) for raw in schemas]


def _schema_name(schema: object) -> str:
    """Chat nests it in ``function``; the other dialects do not."""
    fields = schema if isinstance(schema, dict) else {}
    inner = fields.get("function")
    name = inner.get("name") if isinstance(inner, dict) else fields.get("name")
    return name if isinstance(name, str) else ""


def _largest(whole: _Whole, holds: Sequence[str], top: int) -> tuple[LargeItem, ...]:
    order = sorted(range(len(whole.sizes)), key=lambda index: -whole.sizes[index])[:top]
    return tuple(_item(whole, index, holds[index]) for index in order)


def _item(whole: _Whole, index: int, hold: str) -> LargeItem:
    by_kind: dict[ContextKind, int] = {}
    for part, tokens in zip(whole.parts[index], whole.tokens[index], strict=True):
        by_kind[part.kind] = by_kind.get(part.kind, 0) + tokens
    kind = max(by_kind, key=by_kind.__getitem__)
    tools = dict.fromkeys(part.name for part in whole.parts[index] if part.kind is kind and kind in _OF_TOOLS)
    return LargeItem(
        index=index,
        role=visible(str(whole.read[index].role or ""), _LONGEST_NAME),
        kind=kind,
        tool=visible(", ".join(name for name in tools if name), _LONGEST_NAME),
        tokens=whole.sizes[index],
        hold=hold,
        begins=visible(shortened(words_of(whole.messages[index], kind), _LONGEST_BEGINNING), _LONGEST_BEGINNING),
    )


def _held(holds: Sequence[str], sizes: Sequence[int], total: int) -> Held:
    by_hold = dict.fromkeys((*(hold.name.lower() for hold in Hold), _BY_POLICY), 0)
    for hold, size in zip(holds, sizes, strict=True):
        by_hold[hold] += size
    return Held(fixed=total - sum(sizes), **by_hold)


def _stages(
    prompt: Measured, sizes: Sequence[int], size_of: SizeOf, policy: CompressionPolicy, limits: Limits
) -> tuple[StageGain, ...]:
    """By sizes that were scaled to the whole, so new messages are, too. What a summary would free depends on what the
    engine writes."""
    factor = sum(sizes) / max(1, sum(prompt.sizes))
    freed = what_each_would_free(
        prompt.messages, sizes, size_of=lambda raw: round(size_of(raw) * factor), policy=policy, limits=limits
    )
    return tuple(
        StageGain(stage=stage.value, freed_tokens=tokens)
        for stage, tokens in freed.items()
        if stage is not CompressionStage.SUMMARY
    )

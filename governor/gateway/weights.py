"""What each message of a prompt weighs, so that the sum is what the engine counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from governor.tokens.counter import Counter
from governor.tokens.model import PromptParts
from governor.types import TokenCount

_LEAST_FACTOR, _MOST_FACTOR = 0.3, 3.0
"""Beyond it something else is wrong than an estimate: an image, a template that leaves messages out."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """All in tokens."""

    sizes: list[int]
    fixed_tokens: int
    """Of tools and framing."""
    size_of: Callable[[bytes], int]
    """Of a message that is new."""


async def weigh(
    counter: Counter,
    messages: Sequence[bytes],
    tools: bytes | None,
    count: TokenCount,
    *,
    without_reasoning: tuple[Sequence[bytes], TokenCount] | None,
) -> Weights:
    """``count``: of the whole prompt. ``without_reasoning``: the same messages and their whole count, where there is
    reasoning in them and the engine can tell how much of it its template shows. Reads much text in a thread."""
    return await asyncio.to_thread(_weigh, counter, messages, tools, count, without_reasoning)


def _weigh(
    counter: Counter,
    messages: Sequence[bytes],
    tools: bytes | None,
    count: TokenCount,
    without_reasoning: tuple[Sequence[bytes], TokenCount] | None,
) -> Weights:
    sizes = counter.sizes(messages)
    if without_reasoning is not None:
        bare_messages, bare_count = without_reasoning
        bare = counter.sizes(bare_messages)
        thought = sum(sizes) - sum(bare)
        shown = min(1.0, max(0.0, (count.tokens - bare_count.tokens) / thought)) if thought > 0 else 0.0
        sizes = [less + round((size - less) * shown) for size, less in zip(sizes, bare, strict=True)]
    last = messages[-1:]
    fixed = max(0, counter.count(PromptParts(messages=last, tools=tools)).tokens - sum(counter.sizes(last)))
    factor = min(_MOST_FACTOR, max(_LEAST_FACTOR, count.tokens / max(1, fixed + sum(sizes))))
    sizes = [round(size * factor) for size in sizes]

    def size_of(raw: bytes) -> int:
        return round(counter.sizes([raw])[0] * factor)

    return Weights(sizes=sizes, fixed_tokens=count.tokens - sum(sizes), size_of=size_of)

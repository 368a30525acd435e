"""Why a turn computed what the engine had computed before: each lost token under one cause. Pure.

What the client, or the governor, changed is told by the hash chain of messages; the rest is the engine's, and is told
apart by where the pages of the prompt were when it was asked. ``docs/design/prefix-breaks.md`` has the reasoning.
"""

from __future__ import annotations

from typing import Final

import msgspec

from governor.context import COMPRESSED, FIRST_PROMPT, FRESH, NOT_CACHED, EngineLoss
from governor.residency.blocks import ANY_KV, L3_KV, L3_STATE, NEAR_KV
from governor.residency.predict import Prediction
from governor.tokens.breaks import Break, BreakCause
from governor.types import PromptShape, Usage

LEAST_LOSS_TOKENS: Final = 256
"""Less is what an engine computes again in any case: it caches whole pages, and leaves the last token out."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and what of it was served. ``None`` is unknown."""

    shape: PromptShape
    usage: Usage
    is_main: bool = True
    """Of the main line of its conversation; a title or a summary is a prompt of its own, and only the engine can lose
    of it."""
    broke: Break | None = None
    """Where the client left what its session had sent."""
    is_compressed: bool = False
    """The governor has made it shorter, for the first time."""
    before_tokens: int | None = None
    """The main line's prompt before it."""
    known_tokens: int | None = None
    """Of its beginning, what the engine has had as a prompt; no more than that."""
    carrier_tokens: int = 0
    """Rather too many, of its last message: what a carrier that moved may have taken of the prompt before."""

    @property
    def is_unbroken(self) -> bool:
        goes_on = self.shape in {PromptShape.CONTINUATION, PromptShape.REPEAT}
        return goes_on and self.broke is None and not self.is_compressed


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was known of the engine's cache when it was asked."""

    predicted: Prediction
    here: bytes
    """Of each whole page of the prompt, where it was (:meth:`governor.residency.blocks.Blocks.places_at`)."""
    page_tokens: int
    has_states: bool
    shared_pages: int | None = None
    """With the context that the prompt goes on with, or broke off from; ``None``: it is not known."""


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of the engine since the session's turn before."""

    restarted: bool = False
    flushed: bool = False


class Part(msgspec.Struct, frozen=True):
    """Tokens lost for one cause."""

    cause: str
    """A :class:`~governor.tokens.breaks.BreakCause`, an :class:`~governor.context.EngineLoss`, or one of the constants
    beside it."""
    tokens: int | None
    """``None``: the engine does not tell."""
    is_clients: bool = False
    """It has the place of the client's break."""


def parts_of(asked: Asked, found: Found | None, since: Since) -> tuple[Part, ...]:
    """The dearest first; nothing where nothing was lost. Of a first prompt, what it had to compute, though that is no
    loss."""
    prefilled = asked.usage.new_tokens
    if prefilled is None:
        return _unmeasured(asked)
    if asked.before_tokens is None and asked.shape is PromptShape.FRESH:
        return (Part(FIRST_PROMPT, prefilled),) if asked.is_main and prefilled >= LEAST_LOSS_TOKENS else ()
    engines_tokens = _engines_tokens(asked, found)
    parts = (*_clients(asked, prefilled, engines_tokens), *_engines(asked, found, since, engines_tokens))
    return tuple(sorted(parts, key=lambda part: -(part.tokens or 0)))


def _unmeasured(asked: Asked) -> tuple[Part, ...]:
    if not asked.is_main:
        return ()
    if asked.broke is not None:
        return (Part(asked.broke.cause.value, None, is_clients=True),)
    return (Part(COMPRESSED, None),) if asked.is_compressed else ()


def _clients(asked: Asked, prefilled: int, engines_tokens: int) -> tuple[Part, ...]:
    """What the client's break cost, or the governor's compression: what was computed though it was not new, less what
    the engine alone had lost."""
    if not asked.is_main or asked.is_unbroken or asked.before_tokens is None:
        return ()
    grown = max(0, (asked.usage.prompt_tokens or 0) - asked.before_tokens)
    lost = max(0, prefilled - grown - engines_tokens)
    if asked.broke is not None and asked.shape is not PromptShape.FRESH:
        return (Part(asked.broke.cause.value, lost, is_clients=True),) if lost else ()
    if asked.is_compressed:
        return (Part(COMPRESSED, lost),) if lost else ()
    if lost < LEAST_LOSS_TOKENS or asked.shape is not PromptShape.FRESH:
        return ()
    if asked.broke is not None:
        return (Part(asked.broke.cause.value, lost, is_clients=True),)
    return (Part(FRESH, lost),)


def _engines(asked: Asked, found: Found | None, since: Since, lost: int) -> tuple[Part, ...]:
    if lost < LEAST_LOSS_TOKENS:
        return ()
    if found is None or not found.predicted.is_whole:
        return (Part(_gone(since, NOT_CACHED), lost),)
    cached = asked.usage.cached_tokens or 0
    return _split(asked.usage, found, since, cached, cached + lost)


def _engines_tokens(asked: Asked, found: Found | None) -> int:
    """What the engine has computed before, of just these tokens, and did not serve."""
    known = asked.known_tokens
    if known is None and asked.is_unbroken:
        known = asked.before_tokens
    known = known or 0
    if asked.broke is not None and asked.broke.cause is BreakCause.CARRIER_MOVED and asked.before_tokens is not None:
        known = max(known, asked.before_tokens - asked.carrier_tokens)
    if not asked.is_unbroken and found is not None and found.shared_pages is not None:
        known = max(known, found.shared_pages * found.page_tokens)  # what was reported may end further up
    return max(0, min(known, asked.usage.prompt_tokens or 0) - (asked.usage.cached_tokens or 0))


def _split(usage: Usage, found: Found, since: Since, cached: int, end: int) -> tuple[Part, ...]:
    """Of the tokens from ``cached`` to ``end``, all of which the engine had once."""
    page, predicted = found.page_tokens, found.predicted
    tokens: dict[str, int] = {}

    def take(cause: str, count: int) -> None:
        nonlocal end
        count = max(0, min(count, end - cached))
        if count:
            tokens[cause] = tokens.get(cause, 0) + count
        end -= count

    # From the last token backwards: what became other tokens, what was not there, what could not be gone on from.
    if found.shared_pages is not None:
        take(EngineLoss.OTHER_TOKENS, end - (found.shared_pages + 1) * page)
    usable = predicted.usable_tokens or 0
    base = max(usable, cached)
    pages = found.here[base // page : -(-end // page)]
    held = _run(pages, ANY_KV)
    take(_gone(since, EngineLoss.EVICTED), end - base - held * page)
    readable = _readable(pages[:held], has_states=found.has_states)
    stuck = EngineLoss.STATE_MISSING if found.has_states else EngineLoss.NOT_USED
    take(stuck, end - base - readable * page)
    take(EngineLoss.L3_NOT_READ, end - base)
    # What is left was there, and could be gone on from.
    served_l3 = usage.cached_storage_tokens or 0
    take(EngineLoss.L3_NOT_READ, (predicted.l3_tokens or 0) - served_l3)
    take(EngineLoss.NOT_USED, end - cached)
    return _folded(tokens, page)


def _readable(pages: bytes, *, has_states: bool) -> int:
    """How many of the first pages L3 could have given: it was not asked for so few."""
    if has_states:
        return max((at + 1 for at, here in enumerate(pages) if here & L3_STATE and here & L3_KV), default=0)
    return len(pages) if any(here & L3_KV and not here & NEAR_KV for here in pages) else 0


def _run(pages: bytes, bits: int) -> int:
    return next((at for at, here in enumerate(pages) if not here & bits), len(pages))


def _gone(since: Since, otherwise: str) -> str:
    if since.restarted:
        return EngineLoss.ENGINE_RESTARTED
    return EngineLoss.FLUSHED if since.flushed else otherwise


def _folded(tokens: dict[str, int], page: int) -> tuple[Part, ...]:
    """Less than two pages is the rounding of another cause."""
    dearest = max(tokens, key=lambda cause: tokens[cause])
    crumbs = [cause for cause in tokens if tokens[cause] < 2 * page and cause != dearest]
    tokens[dearest] += sum(tokens.pop(cause) for cause in crumbs)
    return tuple(Part(str(cause), count) for cause, count in tokens.items())

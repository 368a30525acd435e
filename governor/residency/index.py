"""Which agent's contexts are where: the last known pages of each line of a conversation, against what the engine has.

A page that contexts of several agents begin with is attributed once, as shared. What each agent holds of each tier is
counted as pages come and go; what a context finds is asked when somebody looks, and kept while nothing changes.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence

import msgspec

from governor.residency.blocks import ANY_KV, KV, Blocks, Tier
from governor.residency.names import shared_pages
from governor.residency.predict import Prediction, Rules, predict

SHARED = ""
"""Stands for an agent where a page is of several ones' contexts; no agent has this name."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is followed. Beyond a limit the context that was answered longest ago goes."""

    contexts: int = 256
    pages: int = 400_000
    """Over all contexts; some 150 bytes of memory each."""
    look_again_s: float = 1.0
    """A context that is looked at again within this is told as before, whatever has changed since."""


class ContextKey(msgspec.Struct, frozen=True):
    """One line of a conversation: what its next prompt goes on with."""

    agent: str
    context: str


class _Context:
    __slots__ = ("answered_at", "looked_at", "pages", "prediction", "session", "tokens", "version", "why_unknown")

    def __init__(self, session: str, pages: array[int], tokens: int, answered_at: float, why: str | None) -> None:
        self.session = session
        self.pages = pages
        self.tokens = tokens
        self.answered_at = answered_at
        self.why_unknown = why
        self.prediction: Prediction | None = None
        self.version = -1
        self.looked_at = 0.0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One context now."""

    key: ContextKey
    session: str
    answered_at: float
    """Unix time of the end of its last answer."""
    prediction: Prediction
    shared_tokens: int | None
    """Of the context, from its start: what other agents' contexts begin with, too."""


class ResidencyIndex:
    """A watcher of ``Blocks`` (see :class:`governor.residency.blocks.Watcher`): make it first, then :meth:`attach`."""

    def __init__(self, limits: Limits | None = None, rules: Rules | None = None) -> None:
        self._limits = limits or Limits()
        self.rules = rules or Rules()
        self._blocks: Blocks
        self._contexts: OrderedDict[ContextKey, _Context] = OrderedDict()
        self._pages = 0
        self._owners: dict[int, tuple[str, ...]] = {}
        """Of each page of a context, the agents of all contexts that have it."""
        self._owner_sets: dict[tuple[str, ...], tuple[str, ...]] = {}
        """One object for each set of owners, since there are few sets and many pages."""
        self._held: dict[Tier, Counter[str]] = {tier: Counter() for tier in Tier}

    def attach(self, blocks: Blocks) -> None:
        """What is told of from now on; once."""
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._contexts)

    # What has happened

    def on_answered(self, key: ContextKey, session: str, pages: array[int], tokens: int, at: float) -> None:
        """A context is now these pages and ``tokens`` in all. ``at``: Unix time."""
        self._put(key, _Context(session, pages, tokens, at, None))

    def on_unfollowed(self, key: ContextKey, session: str, tokens: int, at: float, why: str) -> None:
        """A context has gone on, and its tokens are not known."""
        self._put(key, _Context(session, array("q"), tokens, at, why))

    def clear(self) -> None:
        """Another engine may have another tokenizer."""
        for key in list(self._contexts):
            self._forget(key)

    def on_page(self, page: int, before: int, after: int, *, moved: bool) -> None:
        owners = self._owners.get(page)
        if owners is None:
            return
        owner = _owner(owners)
        for tier, bit in KV.items():
            if (before ^ after) & bit:
                self._held[tier][owner] += 1 if after & bit else -1

    def on_forgotten(self, *, anew: bool) -> None:
        """Each page was told of by itself."""

    # What there is

    def held_pages(self, tier: Tier) -> dict[str, int]:
        """KV pages in a tier by agent, each counted once; :data:`SHARED` for those of several. What is of nobody's
        last context is not in it."""
        return {owner: count for owner, count in self._held[tier].items() if count}

    def standings(self, now: float) -> list[Standing]:
        """All contexts, the last answered one first. ``now``: any clock, for :attr:`Limits.look_again_s`."""
        return [self._standing(key, each, now) for key, each in reversed(self._contexts.items())]

    def pages_of(self, key: ContextKey) -> Sequence[int]:
        """Of its last known tokens, whole ones; none of an unknown context."""
        context = self._contexts.get(key)
        return () if context is None else context.pages

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        owners: dict[int, list[str]] = {}
        for key, context in self._contexts.items():
            for page in context.pages:
                owners.setdefault(page, []).append(key.agent)
        if {page: tuple(sorted(each)) for page, each in owners.items()} != self._owners:
            raise AssertionError("pages have other owners than the contexts say")
        if self._pages != sum(len(each.pages) for each in self._contexts.values()):
            raise AssertionError("pages are counted wrongly")
        for tier, bit in KV.items():
            counted = Counter(_owner(each) for page, each in self._owners.items() if self._blocks.flags(page) & bit)
            if dict(counted) != self.held_pages(tier):
                raise AssertionError(f"{tier.name} is counted wrongly")

    # Parts

    def _standing(self, key: ContextKey, context: _Context, now: float) -> Standing:
        version = self._blocks.version
        fresh = context.prediction is not None and (
            context.version == version or now - context.looked_at < self._limits.look_again_s
        )
        if not fresh:
            context.prediction = self._predicted(context)
            context.version, context.looked_at = version, now
        assert context.prediction is not None  # noqa: S101 - for the type checker
        return Standing(
            key=key,
            session=context.session,
            answered_at=context.answered_at,
            prediction=context.prediction,
            shared_tokens=None if context.why_unknown else self._shared_tokens(context),
        )

    def _predicted(self, context: _Context) -> Prediction:
        if context.why_unknown:
            return Prediction(
                context_tokens=context.tokens, unknown_tokens=context.tokens, why_unknown=context.why_unknown
            )
        blocks = self._blocks
        return predict(context.pages, context.tokens, blocks.flags, blocks.knowledge, self.rules)

    def _shared_tokens(self, context: _Context) -> int:
        """Who has a page has all before it, so the last shared one is looked for by halves."""
        low, high = 0, len(context.pages)
        while low < high:
            middle = (low + high + 1) // 2
            if _owner(self._owners[context.pages[middle - 1]]) == SHARED:
                low = middle
            else:
                high = middle - 1
        return low * (self._blocks.knowledge.page_tokens or 0)

    def _put(self, key: ContextKey, context: _Context) -> None:
        before = self._contexts.pop(key, None)
        kept = 0
        if before is not None:
            kept = shared_pages(before.pages, context.pages)
            self._disown(before.pages[kept:], key.agent)
            self._pages -= len(before.pages)
        self._own(context.pages[kept:], key.agent)
        self._contexts[key] = context
        self._pages += len(context.pages)
        while len(self._contexts) > self._limits.contexts or self._pages > self._limits.pages:
            self._forget(next(iter(self._contexts)))

    def _forget(self, key: ContextKey) -> None:
        context = self._contexts.pop(key)
        self._disown(context.pages, key.agent)
        self._pages -= len(context.pages)

    def _own(self, pages: Sequence[int], agent: str) -> None:
        for page in pages:
            self._change_owners(page, (*self._owners.get(page, ()), agent))

    def _disown(self, pages: Sequence[int], agent: str) -> None:
        for page in pages:
            left = list(self._owners[page])
            left.remove(agent)
            self._change_owners(page, tuple(left))

    def _change_owners(self, page: int, after: tuple[str, ...]) -> None:
        before, after = self._owners.get(page), tuple(sorted(after))
        if after:
            self._owners[page] = self._owner_sets.setdefault(after, after)
        else:
            del self._owners[page]
        here = self._blocks.flags(page)
        if not here & ANY_KV or (before and after and _owner(before) == _owner(after)):
            return
        for tier, bit in KV.items():
            if here & bit:
                if before:
                    self._held[tier][_owner(before)] -= 1
                if after:
                    self._held[tier][_owner(after)] += 1


def _owner(owners: tuple[str, ...]) -> str:
    first = owners[0]
    return first if first == owners[-1] else SHARED

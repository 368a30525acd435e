"""Which agent's contexts are where: the last known pages of each line of a conversation, against what the engine has.

A page that contexts of several agents begin with is attributed once, as shared. What each agent holds of each tier is
counted as pages come and go; what a context finds is asked when somebody looks, and kept until one of its pages has
changed.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence

import msgspec

from governor.residency.blocks import ANY_KV, KV, Blocks, Knowledge, Tier
from governor.residency.names import shared_pages
from governor.residency.predict import Prediction, Rules, predict

SHARED = ""
"""Stands for an agent where a page is of several ones' contexts; no agent has this name."""
_TIERS = tuple(tuple(tier for tier in Tier if bits & KV[tier]) for bits in range(64))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is followed. Beyond a limit the context that was answered longest ago goes."""

    contexts: int = 256
    contexts_per_session: int = 3
    """A session that was compacted or reviewed has several lines; the old ones are of no use soon."""
    pages: int = 400_000
    """Over all contexts; some 150 bytes of memory each."""
    look_again_s: float = 1.0
    """A context that is looked at again within this is told as before, whatever has changed since."""


class ContextKey(msgspec.Struct, frozen=True, order=True):
    """One line of a conversation: what its next prompt goes on with."""

    agent: str
    context: str


class _Context:
    __slots__ = ("answered_at", "knowledge", "looked_at", "pages", "prediction", "session", "tokens", "why_unknown")

    def __init__(self, session: str, pages: array[int], tokens: int, answered_at: float, why: str | None) -> None:
        self.session = session
        self.pages = pages
        self.tokens = tokens
        self.answered_at = answered_at
        self.why_unknown = why
        self.prediction: Prediction | None = None
        self.knowledge: Knowledge | None = None
        """What the prediction was made with."""
        self.looked_at = 0.0


class _Owners:
    """The contexts that have a page: few sets of them, and many pages of each."""

    __slots__ = ("keys", "name", "pages")

    def __init__(self, keys: tuple[ContextKey, ...]) -> None:
        self.keys = keys
        self.pages = 0
        """How many have just these."""
        first = keys[0].agent
        self.name = first if first == keys[-1].agent else SHARED


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
        self._changed: set[ContextKey] = set()
        """Contexts of which a page has changed since they were looked at."""
        self._pages = 0
        self._owners: dict[int, _Owners] = {}
        self._owner_sets: dict[tuple[ContextKey, ...], _Owners] = {}
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
        self._changed.update(owners.keys)
        for tier in _TIERS[before & ~after]:
            self._held[tier][owners.name] -= 1
        for tier in _TIERS[after & ~before]:
            self._held[tier][owners.name] += 1

    def on_forgotten(self, *, anew: bool) -> None:
        """Each page was told of by itself."""

    # What there is

    def pages_of(self, key: ContextKey) -> array[int] | None:
        """Of a context as it was last answered; ``None``: it is not followed."""
        context = self._contexts.get(key)
        return None if context is None or context.why_unknown else context.pages

    def held_pages(self, tier: Tier) -> dict[str, int]:
        """KV pages in a tier by agent, each counted once; :data:`SHARED` for those of several. What is of nobody's
        last context is not in it."""
        return {owner: count for owner, count in self._held[tier].items() if count}

    def standings(self, now: float) -> list[Standing]:
        """All contexts, the last answered one first. ``now``: any clock, for :attr:`Limits.look_again_s`."""
        return [self._standing(key, each, now) for key, each in reversed(self._contexts.items())]

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        owners: dict[int, list[ContextKey]] = {}
        for key, context in self._contexts.items():
            for page in context.pages:
                owners.setdefault(page, []).append(key)
        if {page: tuple(sorted(each)) for page, each in owners.items()} != {
            page: each.keys for page, each in self._owners.items()
        }:
            raise AssertionError("pages have other owners than the contexts say")
        if {each.keys: each.pages for each in self._owner_sets.values()} != Counter(
            each.keys for each in self._owners.values()
        ):
            raise AssertionError("sets of owners are counted wrongly")
        if self._pages != sum(len(each.pages) for each in self._contexts.values()):
            raise AssertionError("pages are counted wrongly")
        places = self._blocks.places(self._owners)
        for tier, bit in KV.items():
            here = zip(self._owners.values(), places, strict=True)
            if dict(Counter(each.name for each, bits in here if bits & bit)) != self.held_pages(tier):
                raise AssertionError(f"{tier.name} is counted wrongly")

    # Parts

    def _standing(self, key: ContextKey, context: _Context, now: float) -> Standing:
        prediction = context.prediction
        if prediction is None or (
            now - context.looked_at >= self._limits.look_again_s
            and (key in self._changed or context.knowledge != self._blocks.knowledge)
        ):
            prediction = context.prediction = self._predicted(context)
            context.knowledge, context.looked_at = self._blocks.knowledge, now
            self._changed.discard(key)
        return Standing(
            key=key,
            session=context.session,
            answered_at=context.answered_at,
            prediction=prediction,
            shared_tokens=None if context.why_unknown else self._shared_tokens(context),
        )

    def _predicted(self, context: _Context) -> Prediction:
        if context.why_unknown:
            return Prediction(
                context_tokens=context.tokens, unknown_tokens=context.tokens, why_unknown=context.why_unknown
            )
        places = self._blocks.places(context.pages)
        return predict(places, context.tokens, self._blocks.knowledge, self.rules)

    def _shared_tokens(self, context: _Context) -> int:
        """Who has a page has all before it, so the last shared one is looked for by halves."""
        low, high = 0, len(context.pages)
        while low < high:
            middle = (low + high + 1) // 2
            if self._owners[context.pages[middle - 1]].name == SHARED:
                low = middle
            else:
                high = middle - 1
        return low * (self._blocks.knowledge.page_tokens or 0)

    def _put(self, key: ContextKey, context: _Context) -> None:
        before = self._contexts.pop(key, None)
        kept = 0
        if before is not None:
            kept = shared_pages(before.pages, context.pages)
            self._disown(before.pages[kept:], key)
            self._pages -= len(before.pages)
        self._own(context.pages[kept:], key)
        self._contexts[key] = context
        self._pages += len(context.pages)
        lines = [each for each, other in self._contexts.items() if _same_session(each, other, key, context)]
        for old in lines[: -self._limits.contexts_per_session]:
            self._forget(old)
        while len(self._contexts) > self._limits.contexts or self._pages > self._limits.pages:
            self._forget(next(iter(self._contexts)))

    def _forget(self, key: ContextKey) -> None:
        context = self._contexts.pop(key)
        self._disown(context.pages, key)
        self._pages -= len(context.pages)
        self._changed.discard(key)

    def _own(self, pages: Sequence[int], key: ContextKey) -> None:
        for page in pages:
            before = self._owners.get(page)
            after = (key,) if before is None else tuple(sorted((*before.keys, key)))
            self._change_owners(page, before, after)

    def _disown(self, pages: Sequence[int], key: ContextKey) -> None:
        for page in pages:
            before = self._owners[page]
            self._change_owners(page, before, tuple(each for each in before.keys if each != key))

    def _change_owners(self, page: int, before: _Owners | None, keys: tuple[ContextKey, ...]) -> None:
        after = None
        if keys:
            after = self._owner_sets.get(keys)
            if after is None:
                after = self._owner_sets[keys] = _Owners(keys)
            after.pages += 1
            self._owners[page] = after
        else:
            del self._owners[page]
        if before is not None:
            before.pages -= 1
            if not before.pages:
                del self._owner_sets[before.keys]
        if before is not None and after is not None and before.name == after.name:
            return
        for tier in _TIERS[self._blocks.places((page,))[0] & ANY_KV]:
            if before is not None:
                self._held[tier][before.name] -= 1
            if after is not None:
                self._held[tier][after.name] += 1


def _same_session(key: ContextKey, context: _Context, other_key: ContextKey, other: _Context) -> bool:
    return key.agent == other_key.agent and context.session == other.session

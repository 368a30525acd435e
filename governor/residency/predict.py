"""What a context finds in the cache now: from where the engine can go on, and which tier serves it.

The rules are SGLang's (0.5.23 ``unified_tree_core.py`` match, ``unified_radix_cache.py`` load-back and prefetch;
``docs/design/residency.md``):

* a prompt matches whole pages of all but its last token, from its first page on, while KV is in L1 or L2;
* a hybrid model goes on from the deepest matched page that has a state in L1 or L2, a dense one from the deepest;
* L1 serves up to the deepest such place that has all of it in L1; what lies between is L2's;
* from there on L3 is asked, for no less than a least span, and gives pages without a hole, of a hybrid model up to the
  deepest one with a state; those of them that L2 has, and that only lacked the state, count as L2's.
"""

from __future__ import annotations

from typing import Final

import msgspec

from governor.residency.blocks import ANY_KV, L1_KV, L1_STATE, L2_KV, L3_KV, L3_STATE, NEAR_KV, NEAR_STATE, Knowledge


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Of one engine."""

    l3_least_tokens: int = 256
    """A shorter span is not asked of L3 (``prefetch_threshold``)."""
    l3_behind_l2: bool = True
    """L3 is read into L2, behind what has a copy there; else into L1 (``buffer_only``)."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Of one context, in tokens. ``None``: nobody knows. What is known adds up to ``context_tokens``, with what is in
    no whole page as missing."""

    context_tokens: int
    l1_tokens: int | None = None
    l2_tokens: int | None = None
    l3_tokens: int | None = None
    """These three are served if it goes on now."""
    unusable_tokens: int | None = None
    """Held in some tier, and not to be gone on from: KV behind the last state, or behind a hole."""
    missing_tokens: int | None = None
    """Nowhere: to be computed."""
    unknown_tokens: int = 0
    """Of the context, what nobody can tell of. Where it is not 0, what is served is at least the sum of the tiers."""
    why_unknown: str | None = None

    @property
    def usable_tokens(self) -> int | None:
        """From where it goes on; ``None`` where that is not known."""
        if None in (self.l1_tokens, self.l2_tokens, self.l3_tokens):
            return None
        return (self.l1_tokens or 0) + (self.l2_tokens or 0) + (self.l3_tokens or 0)

    @property
    def is_whole(self) -> bool:
        """Nothing about it is unknown."""
        return self.usable_tokens is not None and not self.unknown_tokens


def predict(
    here: bytes,
    context_tokens: int,
    known: Knowledge,
    rules: Rules,
) -> Prediction:
    """``here``: of each whole page of the context, where it is (:meth:`Blocks.places`)."""
    page_tokens = known.page_tokens
    if why := _why_unknown(known):
        return Prediction(context_tokens=context_tokens, unknown_tokens=context_tokens, why_unknown=why)
    if page_tokens is None:  # nothing was ever cached
        return Prediction(
            context_tokens=context_tokens,
            l1_tokens=0,
            l2_tokens=0,
            l3_tokens=0,
            unusable_tokens=0,
            missing_tokens=context_tokens,
        )
    needs_state = known.has_states is True
    matched = _run(here, NEAR_KV)
    best = _last(here[:matched], NEAR_STATE) if needs_state else matched
    on_device = _run(here, L1_KV)
    device = _last(here[:on_device], L1_STATE) if needs_state else on_device
    host = _count(here[device:best], L2_KV)
    least_pages = max(1, -(-rules.l3_least_tokens // page_tokens))
    asks_l3 = len(here) - best >= least_pages and _is_anchor(here, best, rules)
    disk = _found_in_l3(here, best, needs_state) if asks_l3 and known.l3 else 0
    disk = disk if disk >= least_pages else 0
    usable = device + host + disk
    # Of what is read, pages that L2 has, and only lacked a state behind them, are L2's.
    host_behind = _count(here[best : best + disk], L2_KV)
    why, unknown = None, 0
    if asks_l3 and not known.l3:
        why, unknown = _L3_UNKNOWN, len(here) - best
    elif not known.kv_whole and matched < len(here):
        why, unknown = _KV_UNKNOWN, len(here) - max(matched, best + disk)
    # Of what lies behind, nobody knows whether it can be used.
    unusable = 0 if unknown else max(0, _count(here, ANY_KV) - usable)
    return Prediction(
        context_tokens=context_tokens,
        l1_tokens=device * page_tokens,
        l2_tokens=(host + host_behind) * page_tokens,
        l3_tokens=None if why is _L3_UNKNOWN else (disk - host_behind) * page_tokens,
        unusable_tokens=unusable * page_tokens,
        missing_tokens=max(0, context_tokens - (usable + unusable + unknown) * page_tokens),
        unknown_tokens=unknown * page_tokens,
        why_unknown=why,
    )


_L3_UNKNOWN = "what L3 had before is not known"
_KV_UNKNOWN = "what the engine had before it was listened to is not known"


def _why_unknown(known: Knowledge) -> str | None:
    if not known.kv:
        return "the engine tells nothing of its cache"
    if known.has_states is None:
        return "whether the model keeps states is not known: the plugin does not answer"
    if known.has_states and not known.states:
        return "where states are is not known: the plugin does not answer"
    return None


def _is_anchor(here: bytes, best: int, rules: Rules) -> bool:
    """Whether L3 can be read behind it."""
    return best == 0 or not rules.l3_behind_l2 or bool(here[best - 1] & L2_KV)


def _found_in_l3(here: bytes, start: int, needs_state: bool) -> int:
    """Pages from ``start`` on that can be restored."""
    there = here[start:]
    found = _run(there, L3_KV)
    return _last(there[:found], L3_STATE) if needs_state else found


_HAS: Final = {bits: bytes(bool(each & bits) for each in range(256)) for bits in range(1, 64)}
"""For each choice of bits: whether a page has any of them."""


def _run(here: bytes, bits: int) -> int:
    """Pages from the first one on that have any of these bits."""
    end = here.translate(_HAS[bits]).find(0)
    return len(here) if end < 0 else end


def _last(here: bytes, bits: int) -> int:
    """How many pages end with the last one that has any of these bits."""
    return here.translate(_HAS[bits]).rfind(1) + 1


def _count(here: bytes, bits: int) -> int:
    return here.translate(_HAS[bits]).count(1)

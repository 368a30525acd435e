"""Whether agents fit: how many decode together, how many are only retained, who never fits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

MEAN_SHARE = 0.75
"""An agent's mean context over its ceiling: it grows to the ceiling, is compacted to about half, and grows again."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent may ask for."""

    name: str
    ceiling_tokens: int
    """Prompt and output of one turn at the most."""
    concurrency: int = 1
    """Turns at once; each may be another conversation of that size."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier has for agents; slots of 0 mean that the model has no states."""

    kv_tokens: int
    state_slots: int = 0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Agents against tiers. Counts hold whichever of the agents they are: the largest are counted first."""

    agents: int
    need_tokens: int
    """All at their ceilings, one turn each."""
    peak_tokens: int
    """All at their ceilings with all the turns that they may run at once."""
    peak_turns: int
    decode_at_ceiling: int
    """Agents that decode together when each is at its ceiling."""
    active: int
    """Agents that decode together at their mean size (:data:`MEAN_SHARE` of the ceiling)."""
    active_each_tokens: int
    """Context that each of the active ones may have while they share L1."""
    retained_l2: int | None
    """Agents whose whole context L2 keeps, KV and states; ``None`` without L2."""
    retained_l3: int | None
    too_large: tuple[str, ...]
    """Agents whose ceiling alone is more than L1."""


def fit(
    demands: Sequence[Demand],
    l1: Capacity,
    l2: Capacity | None,
    l3: Capacity | None,
    *,
    requests: int,
    chunk_tokens: int,
) -> Fit:
    """``requests`` decode at once at the most; a state is stored for each chunk of a context, and one at its end.

    L2 is told by itself, since under ``write_through`` it holds a copy of what is in L1.
    """
    ceilings = sorted((demand.ceiling_tokens for demand in demands), reverse=True)

    def states(tokens: int) -> int:
        return -(-tokens // chunk_tokens) + 1

    def whole(tier: Capacity | None) -> int | None:
        if tier is None:
            return None
        by_tokens = _count(ceilings, tier.kv_tokens, lambda tokens: tokens)
        return min(by_tokens, _count(ceilings, tier.state_slots, states)) if tier.state_slots else by_tokens

    at_ceiling = min(requests, _count(ceilings, l1.kv_tokens, lambda tokens: tokens))
    mean = min(requests, _count(ceilings, l1.kv_tokens, lambda tokens: int(tokens * MEAN_SHARE)))
    return Fit(
        agents=len(demands),
        need_tokens=sum(ceilings),
        peak_tokens=sum(demand.ceiling_tokens * demand.concurrency for demand in demands),
        peak_turns=sum(demand.concurrency for demand in demands),
        decode_at_ceiling=at_ceiling,
        active=mean,
        active_each_tokens=l1.kv_tokens // mean if mean else 0,
        retained_l2=whole(l2),
        retained_l3=whole(l3),
        too_large=tuple(demand.name for demand in demands if demand.ceiling_tokens > l1.kv_tokens),
    )


def _count(sizes: Sequence[int], room: int, weight: Callable[[int], int]) -> int:
    for count, size in enumerate(sizes):
        room -= weight(size)
        if room < 0:
            return count
    return len(sizes)

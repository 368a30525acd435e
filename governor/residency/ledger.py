"""What each tier is worth: tokens written into it, held by it, served from it; and what is to be told of one that only
takes. A watcher of the pages; bytes are known where somebody has told what a token and a state take."""

from __future__ import annotations

import msgspec

from governor.residency.blocks import KV, STATE, Tier
from governor.types import Usage

_GB = 1e9
IDLE_BYTES = 4 * _GB
"""A tier that has taken so much and given nothing back is told of."""
IDLE_TOKENS = 1_000_000
"""The same where bytes are not known."""


_KV_TIERS = tuple(tuple(tier for tier in Tier if bits & KV[tier]) for bits in range(64))
_STATE_TIERS = tuple(tuple(tier for tier in Tier if bits & STATE[tier]) for bits in range(64))


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, over all ranks; ``None``: not known."""

    token_bytes: float | None = None
    """KV of one token."""
    state_bytes: float | None = None
    """One state; 0 for a model without."""

    @property
    def is_known(self) -> bool:
        return self.token_bytes is not None and self.state_bytes is not None


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier can hold; ``None``: not known, or no limit."""

    tokens: int | None = None
    state_slots: int | None = None


class TierFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One tier, since the engine's start or since listening began. ``None``: nobody knows."""

    tier: Tier
    written_tokens: int | None = None
    """KV that came into it; again counts again."""
    written_states: int | None = None
    held_tokens: int | None = None
    held_states: int | None = None
    served_tokens: int | None = None
    """To turns through the governor whose answers told the tier."""
    has_served: bool = False
    """Since the engine's start, also before what it told was lost: what is told again is no fault of the tier's."""
    written_bytes: float | None = None
    held_bytes: float | None = None
    served_bytes: float | None = None
    served_per_written: float | None = None
    write_amplification: float | None = None
    """Tokens written into it for each token that was computed; 1: each once."""
    capacity: Totals = Totals()

    @property
    def complaint(self) -> str | None:
        """For the owner: it has taken a lot and has served nothing."""
        if self.served_tokens is None or self.has_served or not self.written_tokens:
            return None
        if self.written_bytes is None:
            is_much, size = self.written_tokens >= IDLE_TOKENS, ""
        else:
            is_much, size = self.written_bytes >= IDLE_BYTES, f" ({self.written_bytes / _GB:.1f} GB)"
        if not is_much:
            return None
        return f"{self.tier.name} was written {self.written_tokens:,} tokens{size} and has served none of them"


class TierLedger:
    """See :class:`governor.residency.blocks.Watcher`."""

    def __init__(self, sizes: Sizes | None = None, capacities: dict[Tier, Totals] | None = None) -> None:
        self.sizes = sizes or Sizes()
        self.capacities: dict[Tier, Totals] = capacities or {tier: Totals() for tier in Tier}
        self._written_pages = dict.fromkeys(Tier, 0)
        self._written_states = dict.fromkeys(Tier, 0)
        self._held_pages = dict.fromkeys(Tier, 0)
        self._held_states = dict.fromkeys(Tier, 0)
        self._served_tokens = dict.fromkeys(Tier, 0)
        self._serving: set[Tier] = set()
        self._telling_turns = 0
        self._computed_pages = 0
        self._l3_before = 0
        """Pages written into L3 before those that count as computed."""

    def on_page(self, page: int, before: int, after: int, *, moved: bool) -> None:
        came = after & ~before
        for tier in _KV_TIERS[before & ~after]:
            self._held_pages[tier] -= 1
        for tier in _STATE_TIERS[before & ~after]:
            self._held_states[tier] -= 1
        for tier in _KV_TIERS[came]:
            self._held_pages[tier] += 1
            self._written_pages[tier] += moved
        for tier in _STATE_TIERS[came]:
            self._held_states[tier] += 1
            self._written_states[tier] += moved
        # What is in L2 was brought back from there, as is what L3 had: it comes by L2.
        if moved and came & KV[Tier.L1] and not before & KV[Tier.L2]:
            self._computed_pages += 1

    def on_forgotten(self, *, anew: bool) -> None:
        """What is told again is counted again, so counting begins anew."""
        if anew:
            self._written_pages[Tier.L3] = self._l3_before = 0
            self._written_states = dict.fromkeys(Tier, 0)
            self._served_tokens = dict.fromkeys(Tier, 0)
            self._serving.clear()
            self._telling_turns = 0
        else:
            self._written_pages[Tier.L1] = self._written_pages[Tier.L2] = self._computed_pages = 0
            self._served_tokens[Tier.L1] = self._served_tokens[Tier.L2] = 0
            self._l3_before = self._written_pages[Tier.L3]

    def on_served(self, usage: Usage) -> None:
        """A turn has ended; one whose answer does not tell the tiers counts for none."""
        if usage.cached_device_tokens is None:
            return
        self._telling_turns += 1
        served = (usage.cached_device_tokens, usage.cached_host_tokens, usage.cached_storage_tokens)
        for tier, tokens in zip(Tier, served, strict=True):
            if tokens:
                self._served_tokens[tier] += tokens
                self._serving.add(tier)

    def figures(self, tier: Tier, page_tokens: int | None, *, is_told: bool, states_told: bool = True) -> TierFigures:
        """``is_told``: somebody tells of what is in it now; ``states_told``: of its states, too."""
        served = self._served_tokens[tier] if self._telling_turns else None
        written = held = written_states = held_states = None
        if is_told and page_tokens is not None:
            written, held = self._written_pages[tier] * page_tokens, self._held_pages[tier] * page_tokens
            if states_told:
                written_states, held_states = self._written_states[tier], self._held_states[tier]
        computed = self._computed_pages * (page_tokens or 0)
        came = None if written is None else written - (self._l3_before * (page_tokens or 0) if tier is Tier.L3 else 0)
        return TierFigures(
            tier=tier,
            written_tokens=written,
            written_states=written_states,
            held_tokens=held,
            held_states=held_states,
            served_tokens=served,
            has_served=tier in self._serving,
            written_bytes=self._bytes(written, written_states),
            held_bytes=self._bytes(held, held_states),
            served_bytes=self._bytes(served, 0),
            served_per_written=served / written if written and served is not None else None,
            write_amplification=came / computed if came is not None and computed else None,
            capacity=self.capacities[tier],
        )

    def _bytes(self, tokens: int | None, states: int | None) -> float | None:
        sizes = self.sizes
        if tokens is None or sizes.token_bytes is None or (states is None and sizes.state_bytes != 0):
            return None
        return tokens * sizes.token_bytes + (states or 0) * (sizes.state_bytes or 0.0)

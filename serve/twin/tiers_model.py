"""Values of the tiers model: its settings, what a match says, how it fails. No behaviour.

Facts and defaults are SGLang 0.5.23's. A *state* is what the engine keeps of a linear-attention (Mamba, gated
delta-net) model at one position of a context; a model without such layers is *dense* and has no states at all.
"""

from __future__ import annotations

from enum import StrEnum
from math import lcm

import msgspec


class WritePolicy(StrEnum):
    """``--hicache-write-policy``."""

    WRITE_THROUGH = "write_through"
    SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"


class EvictionPolicy(StrEnum):
    """``--radix-eviction-policy``: the order in which KV leaves fall. States always fall in order of last use."""

    LRU = "lru"
    LFU = "lfu"
    SLRU = "slru"
    PRIORITY = "priority"


class StateStrategy(StrEnum):
    """``--mamba-radix-cache-strategy``."""

    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"


class PrefetchPolicy(StrEnum):
    """``--hicache-storage-prefetch-policy``."""

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


class HostMode(StrEnum):
    """``--hicache-host-memory-mode``."""

    CACHE = "cache"
    """L2 is a tier."""
    BUFFER_ONLY = "buffer_only"
    """Host memory is what copies between L1 and L3 pass through."""


class Tier(StrEnum):
    """Where a prefix was served from; the deepest tier that any of it came from."""

    MISS = "miss"
    L1 = "device"
    L2 = "host"


class TierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacities and rules of one engine."""

    device_tokens: int
    """L1's KV, in tokens; a multiple of the page."""
    device_slots: int = 0
    """L1's states, those that running requests work in included; 0: a dense model."""
    host_tokens: int = 0
    """L2's KV, in tokens; 0: no HiCache."""
    host_slots: int = 0
    host_mode: HostMode = HostMode.CACHE
    window_tokens: int = 0
    """``--context-length``, which waiting reads of ``buffer_only`` leave room for in L1; 0: not told."""
    storage_tokens: int | None = 0
    """L3; ``None``: no limit, 0: no L3."""
    storage_state_tokens: int = 0
    """How many tokens of L3 one state takes."""
    page_tokens: int = 64
    state_chunk_tokens: int = 64
    """After how many tokens of a prefill the model's kernels have a state."""
    track_interval_tokens: int = 256
    """``--mamba-track-interval``: a decode keeps a state at each multiple of it."""
    strategy: StateStrategy = StateStrategy.EXTRA_BUFFER
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    eviction: EvictionPolicy = EvictionPolicy.LRU
    slru_protected_hits: int = 2
    states_per_path: int = -1
    """``--mamba-max-states-per-path``; -1: no limit."""
    load_back_tokens: int = 10
    """A shorter span is computed again, unless a state comes with it."""
    prefetch_policy: PrefetchPolicy = PrefetchPolicy.TIMEOUT
    prefetch_tokens: int = 256
    """A shorter span is not asked of L3."""
    prefetch_share: float = 0.5
    """Of L2 that prefetches may hold."""
    prefetch_timeout_base_s: float = 1.0
    prefetch_timeout_per_ki_token_s: float = 0.25

    @property
    def state_grid_tokens(self) -> int:
        """A prefill's states are kept at multiples of this from its start (``runtime_context.py:1966``)."""
        return lcm(max(self.state_chunk_tokens, self.page_tokens), self.page_tokens)

    @property
    def track_grid_tokens(self) -> int:
        """A decode's states are kept at multiples of this from the context's start."""
        return lcm(self.state_grid_tokens, self.track_interval_tokens)

    @property
    def slots_per_request(self) -> int:
        """States a running request works in: its own, and two that snapshots go to in turn."""
        if not self.has_states:
            return 0
        return 3 if self.strategy is StateStrategy.EXTRA_BUFFER else 1

    @property
    def has_states(self) -> bool:
        return self.device_slots > 0

    @property
    def has_host(self) -> bool:
        return self.host_tokens > 0

    @property
    def has_storage(self) -> bool:
        return self.has_host and self.storage_tokens != 0

    @property
    def is_buffer_only(self) -> bool:
        return self.has_storage and self.host_mode is HostMode.BUFFER_ONLY

    @property
    def is_write_back(self) -> bool:
        """Without L2 there is nothing to write back to: it becomes write_through (``hicache_hook.py:279``)."""
        return self.write_policy is WritePolicy.WRITE_BACK and not self.is_buffer_only

    @property
    def hits_to_write(self) -> int:
        """``unified_radix_cache.py:558``."""
        if self.is_buffer_only:
            return 2 if self.write_policy is WritePolicy.SELECTIVE else 1
        return 1 if self.write_policy is WritePolicy.WRITE_THROUGH else 2

    @property
    def prefetch_at_least(self) -> int:
        return max(self.prefetch_tokens, self.page_tokens)

    def page_floor(self, tokens: int) -> int:
        return tokens - tokens % self.page_tokens

    def page_ceil(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens) * self.page_tokens


class OutOfCapacity(Exception):
    """An engine would have ended here: it assumes that whoever admits has counted. Nothing was taken."""


class OutOfTokens(OutOfCapacity):
    """L1 has too little KV, even with all that may be evicted."""


class OutOfSlots(OutOfCapacity):
    """L1 has no state left: "Can not alloc mamba cache"."""


class BrokenBooks(AssertionError):
    """An invariant of the model does not hold: an error of this program."""

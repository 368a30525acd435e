"""Configurations of the cache that the twin is played with, with the engine beside it or alone."""

from __future__ import annotations

import msgspec

from serve.twin.tiers_model import EvictionPolicy, HostMode, PrefetchPolicy, StateStrategy, TierSettings, WritePolicy


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration that both are built with, and the sizes of what is played on it."""

    name: str
    page_tokens: int
    device_tokens: int
    device_slots: int = 0
    host_ratio: float = 1.0
    has_storage: bool = True
    host_mode: str = "cache"
    write_policy: str = "write_through"
    strategy: str = "extra_buffer"
    eviction: str = "lru"
    track_interval_tokens: int = 64
    prefetch_tokens: int = 64
    states_per_path: int = -1
    core: str = "rust"
    turn_tokens: int = 300
    """A conversation grows by up to this much a turn."""
    context_tokens: int = 1200
    chunk_tokens: int = 256
    running: int = 3
    slow_copies: bool = False
    """Copies between tiers are hardly ever finished."""
    contexts: int = 16
    """That agents may come back to."""

    @property
    def is_buffer_only(self) -> bool:
        return self.has_storage and self.host_mode == HostMode.BUFFER_ONLY

    def pools(self) -> bytes:
        kept = ("name", "turn_tokens", "context_tokens", "chunk_tokens", "running", "contexts", "slow_copies")
        return msgspec.json.encode({k: v for k, v in msgspec.structs.asdict(self).items() if k not in kept})

    def settings(self, sizes: dict[str, int], storage_tokens: int | None = None) -> TierSettings:
        """``sizes``: what the engine's pools came out as."""
        return TierSettings(
            device_tokens=sizes["tokens"],
            device_slots=sizes["slots"],
            host_tokens=sizes["host_tokens"],
            host_slots=sizes["host_slots"],
            host_mode=HostMode(self.host_mode),
            storage_tokens=storage_tokens if self.has_storage else 0,
            page_tokens=self.page_tokens,
            track_interval_tokens=self.track_interval_tokens,
            strategy=StateStrategy(self.strategy),
            write_policy=WritePolicy(self.write_policy),
            eviction=EvictionPolicy(self.eviction),
            states_per_path=self.states_per_path,
            prefetch_policy=PrefetchPolicy.WAIT_COMPLETE,
            prefetch_tokens=self.prefetch_tokens,
        )


CASES = (
    Case(name="dense-1", page_tokens=1, device_tokens=4096),
    Case(name="dense-64", page_tokens=64, device_tokens=4096),
    Case(name="hybrid-1", page_tokens=1, device_tokens=4096, device_slots=32),
    Case(name="hybrid-64", page_tokens=64, device_tokens=4096, device_slots=32),
)
"""What SGLang uses by default."""
MORE_CASES = (
    Case(name="dense-64-no-hicache", page_tokens=64, device_tokens=4096, host_ratio=0, has_storage=False),
    Case(name="dense-64-selective", page_tokens=64, device_tokens=4096, write_policy="write_through_selective"),
    Case(name="dense-64-write-back", page_tokens=64, device_tokens=4096, write_policy="write_back"),
    Case(name="dense-64-lfu", page_tokens=64, device_tokens=4096, eviction="lfu"),
    Case(name="dense-64-slru", page_tokens=64, device_tokens=4096, eviction="slru"),
    Case(name="dense-64-priority", page_tokens=64, device_tokens=4096, eviction="priority"),
    Case(
        name="hybrid-64-no-hicache",
        page_tokens=64,
        device_tokens=4096,
        device_slots=32,
        host_ratio=0,
        has_storage=False,
    ),
    Case(name="hybrid-64-small-l2", page_tokens=64, device_tokens=4096, device_slots=40, host_ratio=0.5),
    Case(
        name="hybrid-64-selective",
        page_tokens=64,
        device_tokens=4096,
        device_slots=32,
        write_policy="write_through_selective",
    ),
    Case(name="hybrid-64-write-back", page_tokens=64, device_tokens=4096, device_slots=32, write_policy="write_back"),
    Case(name="hybrid-64-path-cap", page_tokens=64, device_tokens=4096, device_slots=32, states_per_path=2),
    Case(name="hybrid-128", page_tokens=128, device_tokens=8192, device_slots=32, track_interval_tokens=128),
    Case(name="dense-64-slow-copies", page_tokens=64, device_tokens=4096, slow_copies=True, running=6, contexts=8),
    Case(
        name="hybrid-64-slow-copies",
        page_tokens=64,
        device_tokens=4096,
        device_slots=48,
        slow_copies=True,
        running=6,
        contexts=8,
    ),
    Case(name="hybrid-1-no-buffer", page_tokens=1, device_tokens=4096, device_slots=32, strategy="no_buffer"),
    Case(name="dense-64-buffer-only", page_tokens=64, device_tokens=4096, host_ratio=0.5, host_mode="buffer_only"),
    Case(
        name="hybrid-64-buffer-only",
        page_tokens=64,
        device_tokens=4096,
        device_slots=32,
        host_ratio=0.5,
        host_mode="buffer_only",
    ),
    Case(
        name="hybrid-64-small-staging",
        page_tokens=64,
        device_tokens=4096,
        device_slots=32,
        host_ratio=0.15,
        host_mode="buffer_only",
    ),
    Case(name="hybrid-64-python", page_tokens=64, device_tokens=4096, device_slots=32, core="python"),
)
"""What it can be told to."""

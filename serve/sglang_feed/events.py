"""Everything the feeds tell, as small frozen values.

Two namings of pages: ``block_hashes`` of KV events are the first 16 hexadecimal digits of a page's SHA-256 as a signed
64-bit number; states and L3 carry the whole digest. :func:`short_hash` leads from one to the other as long as requests
have no ``extra_key``. Source: SGLang 0.5.23 ``mem_cache/utils.py``, ``disaggregation/kv_events.py``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class KvTier(StrEnum):
    DEVICE = "GPU"
    HOST = "CPU_PINNED"
    DISK = "DISK"
    EXTERNAL = "EXTERNAL"


class KvStored(msgspec.Struct, frozen=True, kw_only=True):
    """Pages are in a tier; may be told again. In order, each the parent of the next."""

    hashes: tuple[int, ...]
    parent: int | None
    """Page before the first; ``None`` at the start of a prompt."""
    token_ids: tuple[int, ...]
    page_tokens: int
    tier: KvTier


class KvRemoved(msgspec.Struct, frozen=True, kw_only=True):
    hashes: tuple[int, ...]
    tier: KvTier


class KvCleared(msgspec.Struct, frozen=True):
    """The engine has forgotten every page (``/flush_cache``)."""


class KvLost(msgspec.Struct, frozen=True):
    """Nobody tells of KV until the next :class:`KvReset`: the engine is gone."""

    reason: str


class KvReset(msgspec.Struct, frozen=True):
    """What was told before does not hold any more: begin with nothing. What follows is all that can be had."""

    reason: str


class StateChange(StrEnum):
    STORED = "stored"
    """On the device, by a prefill chunk or a finished request."""
    EVICTED = "evicted"
    BACKED_UP = "backed_up"
    """From the device to the host."""
    RESTORED = "restored"
    """From the host to the device."""
    LOADED = "loaded"
    """From L3 to the host."""


class StateTier(StrEnum):
    DEVICE = "device"
    HOST = "host"


class StateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A Mamba state: where it is, a prompt can be resumed."""

    change: StateChange
    tier: StateTier
    page: str
    """Digest of the last page before it."""
    tokens: int
    """Its depth in the prompt."""
    tiers: frozenset[StateTier]
    """Where it is now."""


class KnownState(msgspec.Struct, frozen=True, kw_only=True):
    page: str
    tokens: int
    tiers: frozenset[StateTier]


class StatesKnown(msgspec.Struct, frozen=True):
    """All states that there are; replaces what was known."""

    states: tuple[KnownState, ...]


class L3Change(StrEnum):
    WRITTEN = "written"
    """Also of pages that were there already."""
    FOUND = "found"
    LOADED = "loaded"
    """Into the host tier."""
    EVICTED = "evicted"
    CLEARED = "cleared"


class L3Changed(msgspec.Struct, frozen=True, kw_only=True):
    change: L3Change
    rid: str | None = None
    """The request it was asked for."""
    pages: tuple[str, ...] = ()
    """Written."""
    state_pages: tuple[str, ...] = ()
    """States written, by the page before each."""
    tokens: int = 0
    """Found or loaded."""
    asked_pages: int = 0
    """Pages that the request would have liked."""
    file: str | None = None
    """Evicted: a page's digest and the backend's suffix; ``.mamba`` between them marks a state."""


class PrefixMatched(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting request would find. Told again when it changes."""

    rid: str
    prompt_tokens: int
    """Tokens that can match: all but the last."""
    kv_tokens: int
    """Depth to which KV is on device or host."""
    usable_tokens: int
    """Depth from which it can be resumed: KV and a state."""
    device_tokens: int
    host_tokens: int


class RequestAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a request was served from cache, by tier, when its first chunk ran."""

    rid: str
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    storage_tokens: int


class PluginHello(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin answers. A new ``instance`` means that the engine was started anew."""

    instance: str
    pid: int
    tree: str
    page_tokens: int
    has_states: bool
    """The model has Mamba states."""
    missing_hooks: tuple[str, ...]
    """Places of the engine where our function is not; empty is the proof that all took hold."""
    calls: dict[str, int]
    """How often each was called."""
    failures: int
    """How often one failed."""
    dropped: int
    """Messages that the plugin could not queue."""
    l3_told: int | None
    """How often it has told of L3 before; 0: whatever it has written there will be told. ``None``: it does not say."""


class PluginLost(msgspec.Struct, frozen=True):
    """Nothing is known of states until the next :class:`StatesKnown`."""

    reason: str


FeedEvent = (
    KvStored
    | KvRemoved
    | KvCleared
    | KvReset
    | KvLost
    | StateChanged
    | StatesKnown
    | L3Changed
    | PrefixMatched
    | RequestAdmitted
    | PluginHello
    | PluginLost
)


def short_hash(page: str) -> int:
    """A page's digest as KV events name it."""
    number = int(page[:16], 16)
    return number - (1 << 64) if number >= 1 << 63 else number

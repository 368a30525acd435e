"""The plugin's lines and SGLang's KV payloads, read into our events. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from serve.sglang_feed.events import (
    FeedEvent,
    KnownState,
    KvCleared,
    KvRemoved,
    KvStored,
    KvTier,
    L3Change,
    L3Changed,
    PluginHello,
    PrefixMatched,
    RequestAdmitted,
    StateChange,
    StateChanged,
    StatesKnown,
    StateTier,
)

PLUGIN_VERSION = 1
"""Of the message format that is understood."""
_TIERS = {"d": StateTier.DEVICE, "h": StateTier.HOST}


class Unreadable(Exception):
    """A message that does not have its documented shape."""


class _Line(msgspec.Struct, frozen=True):
    """All kinds of lines in one; ``docs/design/sglang-plugin.md`` says which has what."""

    seq: int
    type: str
    version: int = 0
    instance: str = ""
    pid: int = 0
    tree: str = ""
    page_tokens: int = 0
    has_states: bool = False
    hooks: dict[str, bool] = {}
    calls: dict[str, int] = {}
    failures: int = 0
    dropped: int = 0
    l3_told: int | None = None
    change: str = ""
    tier: str = ""
    hash: str | None = None
    tokens: int = 0
    tiers: str = ""
    # A whole number for a reading, a list for a snapshot.
    states: list[tuple[str, int, str]] | int = []
    hashes: tuple[str, ...] = ()
    state_hashes: tuple[str, ...] = ()
    rid: str | None = None
    asked_pages: int = 0
    file: str | None = None
    prompt_tokens: int = 0
    kv_tokens: int = 0
    usable_tokens: int = 0
    device: int = 0
    host: int = 0
    storage: int = 0


_LINES = msgspec.json.Decoder(_Line)


def read_line(line: bytes) -> tuple[int, FeedEvent | None]:
    """A line's number and event; ``None`` for a kind that a newer plugin has. Raises :class:`Unreadable`."""
    try:
        message = _LINES.decode(line)
        return message.seq, _event(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError) as error:
        raise Unreadable(f"the plugin sent an odd line: {error}") from error


def _event(m: _Line) -> FeedEvent | None:
    match m.type:
        case "hello":
            if m.version != PLUGIN_VERSION:
                raise Unreadable(f"the plugin speaks version {m.version}, not {PLUGIN_VERSION}")
            return PluginHello(
                instance=m.instance,
                pid=m.pid,
                tree=m.tree,
                page_tokens=m.page_tokens,
                has_states=m.has_states,
                missing_hooks=tuple(sorted(target for target, holds in m.hooks.items() if not holds)),
                calls=m.calls,
                failures=m.failures,
                dropped=m.dropped,
                l3_told=m.l3_told,
            )
        case "states":
            states = m.states if isinstance(m.states, list) else []
            return StatesKnown(
                tuple(KnownState(page=page, tokens=tokens, tiers=_tiers(tiers)) for page, tokens, tiers in states)
            )
        case "state":
            change, tier = StateChange(m.change), _TIERS[m.tier]
            return StateChanged(change=change, tier=tier, page=m.hash or "", tokens=m.tokens, tiers=_tiers(m.tiers))
        case "l3":
            return L3Changed(
                change=L3Change(m.change),
                rid=m.rid,
                pages=m.hashes,
                state_pages=m.state_hashes,
                tokens=m.tokens,
                asked_pages=m.asked_pages,
                file=m.file,
            )
        case "match":
            return PrefixMatched(
                rid=m.rid or "",
                prompt_tokens=m.prompt_tokens,
                kv_tokens=m.kv_tokens,
                usable_tokens=m.usable_tokens,
                device_tokens=m.device,
                host_tokens=m.host,
            )
        case "admitted":
            return RequestAdmitted(
                rid=m.rid or "",
                prompt_tokens=m.prompt_tokens,
                device_tokens=m.device,
                host_tokens=m.host,
                storage_tokens=m.storage,
            )
    return None


def _tiers(letters: str) -> frozenset[StateTier]:
    return frozenset(_TIERS[letter] for letter in letters)


class KvBatch(msgspec.Struct, frozen=True):
    """What one message of the publisher held."""

    at: float
    """When the engine made it; seconds since the epoch."""
    events: tuple[FeedEvent, ...]


def read_batch(payload: bytes) -> KvBatch:
    """``[timestamp, events, rank]`` in MessagePack. Raises :class:`Unreadable`."""
    try:
        at, entries, *_ = msgspec.msgpack.decode(payload, type=list[Any])
        found = [_kv_event(entry) for entry in entries]
        return KvBatch(float(at), tuple(event for event in found if event is not None))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"the engine sent an odd batch of KV events: {error}") from error


def _kv_event(entry: dict[str, Any]) -> FeedEvent | None:
    match entry["type"]:
        case "BlockStored":
            return KvStored(
                hashes=tuple(entry["block_hashes"]),
                parent=entry.get("parent_block_hash"),
                token_ids=tuple(entry["token_ids"]),
                page_tokens=entry["block_size"],
                tier=KvTier(entry.get("medium", KvTier.DEVICE)),
            )
        case "BlockRemoved":
            return KvRemoved(hashes=tuple(entry["block_hashes"]), tier=KvTier(entry.get("medium", KvTier.DEVICE)))
        case "AllBlocksCleared":
            return KvCleared()
    return None

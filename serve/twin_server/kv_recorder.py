"""KV pages in L1 and L2 as SGLang's KV events. Pure; :mod:`serve.twin_server.kv_events` sends them.

Source: SGLang 0.5.23 ``mem_cache/events.py`` (what becomes one event), ``disaggregation/kv_events.py`` (how it looks).
States and L3 have no events there, so they have none here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from serve.twin.tiers_model import Tier
from serve.twin.tiers_node import Node
from serve.twin_server.content import Blocks, Content

_MEDIA: Final = {Tier.L1: "GPU", Tier.L2: "CPU_PINNED"}


class _Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(_Event, kw_only=True):
    block_hashes: list[int]
    parent_block_hash: int | None = None
    token_ids: list[int]
    block_size: int
    medium: str
    cache_salt: str | None = None


class BlockRemoved(_Event, kw_only=True):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(_Event):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One message."""

    ts: float
    """Seconds since the epoch."""
    events: list[KvEvent]
    attn_dp_rank: int = 0


class KvRecorder:
    """Collects events between two batches; neighbours that continue each other are one."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._queue: list[KvEvent] = []

    def stored(self, node: Node, tier: Tier) -> None:
        for run in node.key.runs:
            self._store(self._content.blocks(run), _MEDIA[tier])

    def removed(self, node: Node, tier: Tier) -> None:
        medium = _MEDIA[tier]
        hashes = [each for run in node.key.runs for each in self._content.blocks(run).block_hashes]
        last = self._queue[-1] if self._queue else None
        if isinstance(last, BlockRemoved) and last.medium == medium:
            last.block_hashes.extend(hashes)
        else:
            self._queue.append(BlockRemoved(block_hashes=hashes, medium=medium))

    def cleared(self) -> None:
        self._queue.append(AllBlocksCleared())

    def take(self) -> list[KvEvent]:
        """What has come since the last time."""
        taken, self._queue = self._queue, []
        return taken

    def _store(self, blocks: Blocks, medium: str) -> None:
        parent, salt = blocks.parent_block_hash, blocks.cache_salt
        last = self._queue[-1] if self._queue else None
        if (
            isinstance(last, BlockStored)
            and (last.medium, last.cache_salt) == (medium, salt)
            and last.block_hashes[-1] == parent
        ):
            last.block_hashes.extend(blocks.block_hashes)
            last.token_ids.extend(blocks.token_ids)
            return
        self._queue.append(
            BlockStored(
                block_hashes=list(blocks.block_hashes),
                parent_block_hash=parent,
                token_ids=list(blocks.token_ids),
                block_size=self._content.page_tokens,
                medium=medium,
                cache_salt=salt,
            )
        )

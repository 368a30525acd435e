"""What SGLang tells of its cache, brought into :class:`~governor.residency.blocks.Blocks`: KV events, our plugin's
messages, the names of L3's files, and what the tiers can hold. The twin tells the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from governor.residency.blocks import Blocks, Tier
from governor.residency.ledger import Sizes, Totals
from governor.settings import Secret
from serve.canary.http import SglangCanary
from serve.canary.model import Checkpoints
from serve.sglang_feed import (
    FeedEvent,
    KvCleared,
    KvFeed,
    KvLost,
    KvRemoved,
    KvReset,
    KvStored,
    L3Changed,
    PluginFeed,
    PluginHello,
    PluginLost,
    StateChanged,
    StatesKnown,
)
from serve.sglang_feed.events import KvTier, L3Change, StateTier, short_hash

log = logging.getLogger(__name__)

Lister = Callable[[], Iterable[str]]
"""The names of all files in L3, without their ending. May block, and may raise :class:`OSError`."""
_KV_TIERS: Final = {KvTier.DEVICE: Tier.L1, KvTier.HOST: Tier.L2}
_STATE_TIERS: Final = {StateTier.DEVICE: Tier.L1, StateTier.HOST: Tier.L2}
_AGAIN_S = 5.0
_SLICE = 2_000
"""Names taken at once, of what may be hundreds of thousands."""
_FILE: Final = re.compile(r"(?P<page>[0-9a-f]{64})(?P<state>\.mamba)?(?:_.*_(?P<rank>\d+)_(?P<ranks>\d+))?")
"""``{hash}[.mamba]_{model}_{rank}_{ranks}`` (SGLang 0.5.23 ``hicache_storage.py``)."""


class CachePlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where an SGLang tells of its cache."""

    kv_events: str | None = None
    """ZMQ address."""
    kv_replay: str | None = None
    plugin_socket: Path | None = None
    l3_folder: Path | None = None
    """``None``: there is no L3, or it begins empty with each engine."""


class SglangCache:
    """See :class:`governor.gateway.residency.CacheFeed`."""

    def __init__(
        self,
        base_url: str,
        places: CachePlaces,
        *,
        key: Secret | None = None,
        list_l3: Lister | None = None,
        read_again_s: float = 30.0,
    ) -> None:
        """``list_l3``: instead of the folder's files. ``read_again_s``: after the folder could not be read."""
        self._base_url = base_url
        self._places = places
        self._key = key
        self._read_again_s = read_again_s
        folder = places.l3_folder
        self._list_l3 = list_l3 or (None if folder is None else lambda: file_names(folder))
        self._blocks: Blocks
        self._instance: str | None = None
        self._list_now = asyncio.Event()
        self._tells = False
        """The plugin is heard."""
        self._told: _Told | None = None
        """While the folder is read."""

    async def run(self, blocks: Blocks) -> None:
        """Until cancelled."""
        self._blocks = blocks
        places = self._places
        async with asyncio.TaskGroup() as tasks:
            if places.kv_events is not None:
                feed = KvFeed(places.kv_events, places.kv_replay, self._on_event)
                tasks.create_task(_kept_up(feed.run, blocks.on_kv_lost))
            if places.plugin_socket is not None:
                listener = PluginFeed(places.plugin_socket, self._on_event)
                tasks.create_task(_kept_up(listener.run, self._on_plugin_lost))
            if self._list_l3 is not None:
                tasks.create_task(self._keep_listed(self._list_l3))

    async def learn(self, blocks: Blocks) -> dict[Tier, Totals]:
        """What an engine that is ready says of its tiers. Raises :class:`UpstreamError`."""
        async with aclosing(SglangCanary(self._base_url, key=self._key)) as engine:
            facts = await engine.facts()
        blocks.on_model(page_tokens=facts.page_tokens, has_states=facts.checkpoints is not Checkpoints.ATTENTION)
        if facts.storage is None:
            blocks.on_l3_cleared()
        return {
            Tier.L1: Totals(tokens=facts.device_tokens, state_slots=facts.state_slots),
            Tier.L2: Totals(tokens=facts.host_tokens if facts.host_tier else 0, state_slots=facts.host_states),
            Tier.L3: Totals(tokens=0 if facts.storage is None else None),
        }

    async def sizes(self, page_tokens: int) -> Sizes | None:
        folder = self._places.l3_folder
        if folder is None:
            return None
        return await asyncio.to_thread(_measured, folder, page_tokens, bool(self._blocks.knowledge.has_states))

    def relist(self) -> None:
        """Somebody else has changed L3's folder."""
        self._list_now.set()

    # What is told

    def _on_event(self, event: FeedEvent) -> None:
        match event:
            case PluginHello():
                self._on_hello(event)
            case L3Changed():
                self._on_l3(event)
            case PluginLost():
                self._on_plugin_lost()
            case StateChanged() | StatesKnown():
                self._on_state(event)
            case _:
                self._on_kv(event)

    def _on_kv(self, event: FeedEvent) -> None:
        blocks = self._blocks
        match event:
            case KvStored() if event.tier in _KV_TIERS:
                blocks.on_stored(_KV_TIERS[event.tier], event.hashes, event.page_tokens)
            case KvRemoved() if event.tier in _KV_TIERS:
                blocks.on_removed(_KV_TIERS[event.tier], event.hashes)
            case KvCleared():
                blocks.on_cleared()
            case KvReset():
                log.info("the engine's cache is looked at anew: %s", event.reason)
                blocks.on_reset()
            case KvLost():
                blocks.on_kv_lost()

    def _on_state(self, event: StateChanged | StatesKnown) -> None:
        if isinstance(event, StatesKnown):
            self._blocks.on_states(
                (short_hash(state.page), [_STATE_TIERS[tier] for tier in state.tiers]) for state in event.states
            )
        elif event.page:
            self._blocks.on_state(short_hash(event.page), [_STATE_TIERS[tier] for tier in event.tiers])

    def _on_l3(self, event: L3Changed) -> None:
        match event.change:
            case L3Change.WRITTEN:
                pages, states = [short_hash(page) for page in event.pages], [*map(short_hash, event.state_pages)]
                self._blocks.on_l3_written(pages, states)
                if self._told is not None:
                    self._told.on_written(pages, states)
            case L3Change.EVICTED if event.file is not None:
                for page, is_state in _pages_of([event.file]):
                    self._blocks.on_l3_evicted(page, is_state=is_state)
                    if self._told is not None:
                        self._told.on_evicted(page, is_state=is_state)
            case L3Change.CLEARED:
                self._blocks.on_l3_cleared()

    def _on_plugin_lost(self) -> None:
        self._tells, self._told = False, None
        self._blocks.on_states_lost()

    def _on_hello(self, event: PluginHello) -> None:
        blocks = self._blocks
        self._tells = True
        if event.instance != self._instance:
            blocks.on_anew(keeps_l3=self._list_l3 is not None)
            self._instance = event.instance
        blocks.on_model(page_tokens=event.page_tokens, has_states=event.has_states)
        if self._list_l3 is not None:
            self._list_now.set()
        elif event.l3_told == 0:
            blocks.on_l3_cleared()

    # L3's files

    async def _keep_listed(self, list_l3: Lister) -> None:
        while True:
            await self._list_now.wait()
            self._list_now.clear()
            try:
                await self._read_l3(list_l3)
            except OSError as error:
                log.warning("L3's folder could not be read, so what it has is not known: %s", error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._read_again_s):
                        await self._list_now.wait()
                self._list_now.set()

    async def _read_l3(self, list_l3: Lister) -> None:
        """What is written and what goes meanwhile is told by the plugin; while it is silent, nobody knows."""
        self._blocks.on_l3_unsure()
        if not self._tells:
            return  # it is read when the plugin is heard again
        self._told = told = _Told()
        try:
            names = await asyncio.to_thread(lambda: list(list_l3()))
            pages: set[int] = set()
            states: set[int] = set()
            for start in range(0, len(names), _SLICE):
                for page, is_state in _pages_of(names[start : start + _SLICE]):
                    (states if is_state else pages).add(page)
                await asyncio.sleep(0)
            if self._told is told:
                self._blocks.on_l3_listed(told.applied(pages, told.pages), told.applied(states, told.states))
        finally:
            self._told = None


class _Told:
    """What the plugin has told since the folder's files were asked for: by page, whether it is there now."""

    def __init__(self) -> None:
        self.pages: dict[int, bool] = {}
        self.states: dict[int, bool] = {}

    def on_written(self, pages: Iterable[int], states: Iterable[int]) -> None:
        self.pages.update(dict.fromkeys(pages, True))
        self.states.update(dict.fromkeys(states, True))

    def on_evicted(self, page: int, *, is_state: bool) -> None:
        (self.states if is_state else self.pages)[page] = False

    @staticmethod
    def applied(listed: set[int], told: dict[int, bool]) -> set[int]:
        """What there is now of what there was."""
        come = {page for page, is_there in told.items() if is_there}
        return (listed - told.keys()) | come


def file_names(folder: Path) -> Iterator[str]:
    """See :data:`Lister`."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(".bin"):
                yield file.name.removesuffix(".bin")


def _measured(folder: Path, page_tokens: int, has_states: bool) -> Sizes:
    """By the first file of each kind. A file is one rank's part."""
    pages = states = None
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        for file in files:
            found = _FILE.fullmatch(file.name.removesuffix(".bin"))
            if found is None:
                continue
            size = file.stat().st_size * int(found["ranks"] or 1)
            if found["state"] is None:
                pages = pages or size
            else:
                states = states or size
            if pages and (states or not has_states):
                break
    return Sizes(token_bytes=pages / page_tokens if pages else None, state_bytes=states if has_states else 0.0)


def _pages_of(names: Iterable[str]) -> Iterator[tuple[int, bool]]:
    """Pages and whether it is their state. Every rank has its part of a page; the first one's stands for all."""
    for name in names:
        found = _FILE.fullmatch(name)
        if found is not None and found["rank"] in (None, "0"):
            yield short_hash(found["page"]), found["state"] is not None


async def _kept_up(run: Callable[[], Awaitable[None]], on_lost: Callable[[], None]) -> None:
    while True:
        try:
            await run()
        except Exception:
            log.exception("what the engine tells of its cache could not be heard")
        on_lost()
        await asyncio.sleep(_AGAIN_S)

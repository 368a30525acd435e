"""The tiers model: SGLang's prefix cache over L1, L2 and L3, with the states of hybrid models. Pure and deterministic.

This is the whole of it as an engine model sees it: requests come, are prefilled by chunks, decode, end; copies between
tiers are under way until somebody says that they are made. What each method does is what SGLang 0.5.23 does, names of
its files stand in the parts. ``docs/design/twin-tiers.md`` says how it was checked and where it differs.
"""

from __future__ import annotations

import msgspec

from serve.twin.tiers_beliefs import Beliefs
from serve.twin.tiers_buffer import BufferTier
from serve.twin.tiers_buffer_read import BufferLoads, BufferPrefetches
from serve.twin.tiers_check import check_tree
from serve.twin.tiers_device import DeviceTier
from serve.twin.tiers_host import HostTier
from serve.twin.tiers_insert import insert
from serve.twin.tiers_key import Key
from serve.twin.tiers_load import Loads
from serve.twin.tiers_model import BrokenBooks, OutOfCapacity, OutOfSlots, StateStrategy, Tier, TierSettings
from serve.twin.tiers_observer import TiersObserver
from serve.twin.tiers_prefetch import Prefetch, Prefetches
from serve.twin.tiers_request import Request
from serve.twin.tiers_storage import Storage
from serve.twin.tiers_tree import Tree, Walk

RETRACT_STEPS = 20
"""``SGLANG_RETRACT_DECODE_STEPS``: decode steps that a retraction makes room for."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a context need not be computed."""

    device_tokens: int
    """Usable in L1."""
    host_tokens: int
    """Copies in L2 beyond these, down to the deepest usable position."""
    usable_tokens: int
    """Deepest position with KV and state, each in L1 or L2."""
    kv_tokens: int
    """How deep there is KV, with or without a state."""
    loads_state: bool
    """The state at that position is in L2 only."""

    @property
    def tier(self) -> Tier:
        if self.host_tokens or self.loads_state:
            return Tier.L2
        return Tier.L1 if self.usable_tokens else Tier.MISS


class Tiers:
    """One engine's prefix cache."""

    def __init__(
        self, settings: TierSettings, storage: Storage | None = None, observer: TiersObserver | None = None
    ) -> None:
        """``storage``: what an engine before this one has left in the same folder."""
        self.settings = settings
        self.observer = observer
        self.storage = storage or Storage(settings)
        self.storage.observer = observer
        self.requests: list[Request] = []
        self._beliefs = Beliefs(settings.page_tokens)
        self.flush()

    def flush(self) -> None:
        """Forget L1 and L2, as ``/flush_cache`` does. Raises :class:`BrokenBooks` while requests run."""
        if self.requests:
            raise BrokenBooks(f"{len(self.requests)} requests run")
        self.tree = Tree(self.settings, self.observer)
        self.host: HostTier
        self.loads: Loads
        self.prefetches: Prefetches
        if self.settings.is_buffer_only:
            self._beliefs.forget_writes()
            self.host = staging = BufferTier(self.tree, self.storage, self._beliefs)
            self.device = DeviceTier(self.tree, self.host)
            self.prefetches = reads = BufferPrefetches(self.tree, staging)
            self.loads = self._splices = BufferLoads(self.tree, self.device, reads)
        else:
            self.host = HostTier(self.tree, self.storage)
            self.device = DeviceTier(self.tree, self.host)
            self.loads = Loads(self.tree, self.device)
            self.prefetches = Prefetches(self.tree, self.host)
        if self.observer is not None:
            self.observer.cleared()

    # Looking

    def match(self, key: Key) -> Match:
        """What a request with this very prefix would find. Refreshes it, as SGLang's does."""
        return _seen(self.look(key))

    def look(self, key: Key) -> Walk:
        """The same, with the nodes that it is on; of a request's key all but the last token counts."""
        walk = self.tree.match(key)
        self.host.note_splits()
        if self.observer is not None:
            self.observer.matched(
                key,
                kv_tokens=walk.kv_tokens,
                usable_tokens=walk.best_tokens,
                device_tokens=walk.device_tokens,
                host_tokens=walk.host_tokens,
            )
        return walk

    @property
    def available_tokens(self) -> int:
        """Of L1's KV: free, or nobody's."""
        return self.tree.free_tokens + self.tree.evictable_tokens

    @property
    def available_slots(self) -> int:
        return self.tree.free_slots + self.tree.evictable_slots

    # A request's life

    def admit(self, key: Key, priority: int = 0, walk: Walk | None = None, staged: Prefetch | None = None) -> Request:
        """Match all but the last token, load back what L2 has, and hold it. ``walk``: that match, where nothing has
        happened since; ``staged``: what was read for it (``buffer_only``), which it keeps where it is not admitted.
        Raises :class:`OutOfSlots`, with ``staged`` :class:`OutOfTokens`, too."""
        walk = walk or self.look(key.cut(0, len(key) - 1))
        best = walk.best
        request = Request(key, priority, walk.device)
        if best.state_device:
            self._take_state_for(request, walk)
        request.device_hit_tokens = request.computed_tokens = walk.device_tokens
        request.branch = self._branch_of(walk)
        if staged is not None:
            self._splice_for(request, walk, staged)
        elif walk.host_tokens > 0 or (best.state_host and not best.state_device):
            self._load_for(request, walk)
        request.protected_tokens = request.computed_tokens
        request.lock = self.tree.lock(request.node)
        self.requests.append(request)
        return request

    def extend(self, request: Request, tokens: int) -> None:
        """Prefill the next ``tokens`` of its context. Raises :class:`OutOfTokens`, :class:`OutOfSlots`; the request
        has then what it had, or its states besides, and may try again."""
        settings = self.settings
        missing = settings.slots_per_request - request.slots
        if missing > 0:
            self.device.take_states(missing)
            request.slots += missing
        page = settings.page_tokens
        self.device.room_for(tokens + (page if page > 1 else 0))
        start, end = request.computed_tokens, request.computed_tokens + tokens
        self.device.take_tokens(settings.page_ceil(end) - settings.page_ceil(start))
        request.computed_tokens = end
        if settings.has_states and settings.strategy is StateStrategy.EXTRA_BUFFER:
            self._track_prefill(request, start, end)

    def checkpoint(self, request: Request) -> None:
        """After each chunk of a prefill: give the tree what it can be resumed from. Raises :class:`OutOfSlots`."""
        at = request.computed_tokens
        if self.settings.has_states and self.settings.strategy is StateStrategy.EXTRA_BUFFER:
            at = min(at, request.state_at or 0)
        if not self.settings.has_states:
            self._give(request, at)
        elif at > 0:
            self.device.take_states(1)
            if not self._give(request, at):
                self.device.give_states(1)
        request.state_at = request.previous_state_at = None
        if self.observer is not None:
            self.observer.prefilled()

    def decode(self, request: Request, output: Key) -> None:
        """Write ``output`` behind the context, one token a step. Raises :class:`OutOfTokens` before the first token
        that has no room; those before it are written."""
        settings = self.settings
        page = settings.page_tokens
        start, at, end = request.computed_tokens, request.computed_tokens, request.computed_tokens + len(output)
        tracks = settings.has_states and settings.strategy is StateStrategy.EXTRA_BUFFER
        fits = settings.page_ceil(end) - settings.page_ceil(at)
        try:
            if self.tree.free_tokens >= fits + page:
                self.device.take_tokens(fits)
                at = end
                if tracks:
                    self._track_decode(request, start, end)
            while at < end:
                self.device.room_for(page)
                if at % page == 0:
                    self.device.take_tokens(page)
                    if page > 1 and at + 1 < end:
                        self.device.room_for(page)
                step = min(end - at, page - at % page)
                at += step
                if tracks:
                    self._track_decode(request, at - step, at)
        finally:
            request.computed_tokens = at
            request.key = request.key + output.cut(0, at - start)

    def finish(self, request: Request, owned_tokens: int | None = None) -> None:
        """End it, or abort it while it runs: the tree keeps what can be resumed. ``owned_tokens``: the context up to
        where the client has seen it, where that is less than what was computed."""
        owned = request.computed_tokens if owned_tokens is None else owned_tokens
        at = owned
        took = False
        if self.settings.has_states and self.settings.strategy is StateStrategy.EXTRA_BUFFER:
            at = request.state_at or 0
            if at > owned:
                at = request.previous_state_at or 0
                at = at if at <= owned else 0
        if at > 0:
            took = self._give(request, at)
            if not self.settings.has_states:
                self._split_at_prompt(request, at)
        request.slots -= int(took)
        self._release(request)

    def retract(self, request: Request, others: int = 0) -> None:
        """Take L1 from a running request for the ``others`` that go on: nothing of what it computed since its last
        checkpoint is kept, its states neither."""
        self._release(request)
        self.device.room_for(others * RETRACT_STEPS)

    # Between the tiers

    def prefetch(self, key: Key) -> Prefetch | None:
        """Ask L3 for what a request with this context will find neither in L1 nor in L2."""
        asked = key.cut(0, len(key) - 1)
        return self.prefetches.start(asked, self.look(asked))

    def settle(self) -> None:
        """All copies under way are made: to L2, to L1, to L3. Prefetches are not ended."""
        self._settle()
        while self.host.launch():
            self._settle()

    def _settle(self) -> None:
        self.host.note_splits()
        for number in list(self.host.writes):
            self.host.finish_write(number)
        for number in list(self.loads.running):
            self.loads.finish(number)
        for number in list(self.host.storage_writes):
            self.host.finish_storage_write(number)

    def evict(self, tokens: int = 0, states: int = 0) -> None:
        """Make room in L1 by hand."""
        if tokens > 0:
            self.device.evict_tokens(tokens)
        if states > 0:
            self.device.evict_states(states)

    def check_integrity(self) -> None:
        """Count everything again. Raises :class:`BrokenBooks`."""
        page_ceil = self.settings.page_ceil
        staging = [self.host.staged, self.prefetches.held, self.loads.held]
        check_tree(
            self.tree,
            request_tokens=sum(page_ceil(each.computed_tokens) - each.protected_tokens for each in self.requests),
            request_slots=sum(each.slots for each in self.requests) + self.loads.spare_slots,
            staged_tokens=sum(tokens for tokens, _ in staging),
            staged_slots=sum(slots for _, slots in staging),
        )
        if sum(each.span_tokens for each in self.prefetches.running) != self.prefetches.asked_tokens:
            raise BrokenBooks("prefetches have not asked for what is booked")

    # Parts

    def _take_state_for(self, request: Request, walk: Walk) -> None:
        """A copy of the matched state, to compute on."""
        lock = self.tree.lock(walk.best)
        try:
            self.device.take_states(1)
        finally:
            self.tree.unlock(lock)
        request.slots = 1

    def _branch_of(self, walk: Walk) -> int | None:
        if not self.settings.has_states:
            return None
        at = walk.kv_tokens - walk.kv_tokens % self.settings.state_grid_tokens
        return at if at > walk.device_tokens + walk.host_tokens else None

    def _load_for(self, request: Request, walk: Walk) -> None:
        tree = self.tree
        locks = [tree.lock(walk.device), tree.lock_host(walk.best), tree.lock(walk.best)]
        has_slot = request.slots > 0
        try:
            load = self.loads.start(walk.best, wants_slot=not has_slot)
        except OutOfSlots:
            self.device.give_states(request.slots)
            raise
        finally:
            for lock in reversed(locks):
                tree.unlock(lock)
        if load is None:
            return
        request.slots = int(tree.has_states)
        if walk.best is not walk.device:
            request.host_hit_tokens = walk.best_tokens - walk.device_tokens
            request.computed_tokens = walk.best_tokens
            request.node = walk.best

    def _splice_for(self, request: Request, walk: Walk, staged: Prefetch) -> None:
        try:
            self._splices.splice(request, walk, staged)
        except OutOfCapacity:
            self.device.give_states(request.slots)
            raise

    def _track_prefill(self, request: Request, start: int, end: int) -> None:
        """``_mamba_radix_cache_v2_req_prepare_for_extend`` of ``schedule_batch.py``."""
        settings = self.settings
        grid, chunk = settings.state_grid_tokens, settings.state_chunk_tokens
        if end - start < grid:
            return
        at = start + (end - start) // grid * grid
        is_last_chunk = at == start + (end - start) // chunk * chunk
        before = end if is_last_chunk else at + 1
        branch = request.branch
        if branch is not None and start < branch < before and (branch - start) % max(chunk, settings.page_tokens) == 0:
            at = branch
        request.state_at = at

    def _track_decode(self, request: Request, start: int, end: int) -> None:
        grid = self.settings.track_grid_tokens
        newest = end - end % grid
        if newest > start:
            before = newest - grid
            request.previous_state_at = before if before > start else request.state_at
            request.state_at = newest

    def _give(self, request: Request, tokens: int) -> bool:
        """Insert the context up to ``tokens`` and hold it there; whether the tree took the state."""
        settings = self.settings
        key = request.key.cut(0, settings.page_floor(tokens))
        done = insert(
            self.tree,
            self.host,
            key,
            owned_from=request.protected_tokens,
            counted_to=request.counted_tokens,
            priority=request.priority,
        )
        request.counted_tokens = max(request.counted_tokens, len(key))
        request.protected_tokens = len(key)
        if request.lock is not None:
            self.tree.unlock(request.lock)
        request.lock = self.tree.lock(done.node)
        request.node = done.node
        return done.took_state

    def _split_at_prompt(self, request: Request, tokens: int) -> None:
        """Dense models: the answer can fall without the prompt (``unified_radix_cache.py:1252``)."""
        prompt = self.settings.page_floor(request.prompt_tokens)
        if 0 < prompt < self.settings.page_floor(tokens):
            key = request.key.cut(0, prompt)
            insert(self.tree, self.host, key, owned_from=prompt, counted_to=prompt, priority=request.priority + 1)

    def _release(self, request: Request) -> None:
        self.device.give_tokens(self.settings.page_ceil(request.computed_tokens) - request.protected_tokens)
        self.device.give_states(request.slots)
        if request.lock is not None:
            self.tree.unlock(request.lock)
        self.requests.remove(request)


def _seen(walk: Walk) -> Match:
    best = walk.best
    return Match(
        device_tokens=walk.device_tokens,
        host_tokens=walk.host_tokens,
        usable_tokens=walk.best_tokens,
        kv_tokens=walk.kv_tokens,
        loads_state=best.state_host and not best.state_device,
    )

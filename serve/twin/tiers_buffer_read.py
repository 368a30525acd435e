"""Reads of an engine whose host memory is staging only: L3 to staging, and to L1 when the request is admitted.

What has been read is its request's until then: no tree has it, nobody else finds it. Follows the load half of
``buffer_mode/pipeline.py`` and ``prepare_staged_prefetch``.
"""

from __future__ import annotations

from serve.twin.tiers_buffer import BufferTier
from serve.twin.tiers_device import DeviceTier
from serve.twin.tiers_insert import insert
from serve.twin.tiers_key import Key
from serve.twin.tiers_load import Load, Loads
from serve.twin.tiers_model import OutOfSlots, OutOfTokens
from serve.twin.tiers_node import Node
from serve.twin.tiers_prefetch import Prefetch, Prefetches
from serve.twin.tiers_request import Request
from serve.twin.tiers_tree import Lock, Tree, Walk

READ_SHARE = 0.9
"""``HICACHE_LOAD_POOL_USAGE_FRACTION``: of the staging, beyond which no read is begun."""
PIN_SHARE = 0.5
"""``SGLANG_HICACHE_BUFFER_ANCHOR_LOCK_CAP``: of L1, that what reads continue may be held in."""


class StagedPrefetch(Prefetch):
    """A span that is asked for, waits for staging, is read, or waits in it for its request."""

    __slots__ = ("granted_tokens", "pinned", "pinned_tokens", "taken_states")

    def __init__(self, key: Key, start: int, anchor: Node, lock: Lock) -> None:
        super().__init__(key, start, anchor, lock)
        self.granted_tokens = 0
        self.taken_states = 0
        self.pinned: Node | None = None
        self.pinned_tokens = 0

    @property
    def is_reading(self) -> bool:
        return self.taken_tokens > 0 or self.taken_states > 0

    @property
    def staged_key(self) -> Key:
        """The context up to where it has been read."""
        return self.key.cut(0, self.start + self.taken_tokens)


class BufferPrefetches(Prefetches):
    """All of them, and what they hold of staging and L1."""

    def __init__(self, tree: Tree, host: BufferTier) -> None:
        super().__init__(tree, host)
        self.buffer = host
        self.parked: list[StagedPrefetch] = []
        self.staged: list[StagedPrefetch] = []
        self.pinned_tokens = 0
        tokens = self.settings.page_floor(self.settings.device_tokens)
        self.pin_limit = max(0, min(int(PIN_SHARE * tokens), tokens - self.settings.window_tokens))

    @property
    def held(self) -> tuple[int, int]:
        under_way = [each for each in (*self.running, *self.staged) if isinstance(each, StagedPrefetch)]
        return sum(each.taken_tokens for each in under_way), sum(each.taken_states for each in under_way)

    def start(self, key: Key, walk: Walk) -> Prefetch | None:
        """Ask for what L1 has not. How much may be asked for is not limited, only what is read."""
        settings = self.settings
        start = walk.device_tokens
        span = settings.page_floor(len(key) - start)
        if span < settings.prefetch_at_least:
            return None
        self.asked_tokens += span
        prefetch = StagedPrefetch(key.cut(0, start + span), start, walk.device, Lock(self.tree.root, is_host=True))
        self.running.append(prefetch)
        return prefetch

    def answer(self, prefetch: Prefetch) -> int:
        """L3 says what it has, or is there room now for what was parked. Returns tokens to read; see ``is_reading``,
        ``is_parked``: with neither the prefetch has ended."""
        prefetch = _own(prefetch)
        if not prefetch.is_parked:
            self._ask(prefetch)
            if prefetch.found_tokens < self.settings.prefetch_at_least:
                self._end(prefetch)
                return 0
        is_behind = bool(self.parked) and self.parked[0] is not prefetch
        if is_behind or not self._launch(prefetch):
            if not prefetch.is_parked:
                prefetch.is_parked = True
                self.parked.append(prefetch)
            return 0
        self._unpark(prefetch)
        if not prefetch.is_reading:
            self._end(prefetch)
        return prefetch.taken_tokens

    def _ask(self, prefetch: StagedPrefetch) -> None:
        storage, beliefs, start = self.host.storage, self.buffer.beliefs, prefetch.start
        has_states = self.settings.has_states
        pages = found = storage.find(prefetch.key, prefetch.anchor, start, needs_state=False)
        if has_states:
            found = storage.find(prefetch.key, prefetch.anchor, start, needs_state=True)
            beliefs.doubt(prefetch.key, start + found, pages=False)
        beliefs.learn(prefetch.key, start, start + pages, has_state=False)
        beliefs.doubt(prefetch.key, start + pages, pages=True)
        prefetch.found_tokens = found
        if self.tree.observer is not None:
            self.tree.observer.storage_found(prefetch.key, start, found)

    def _launch(self, prefetch: StagedPrefetch) -> bool:
        """Begin to read, or find that there is no use in it. ``False``: no room now."""
        tree, settings = self.tree, self.settings
        pool = settings.page_floor(settings.host_tokens)
        if pool - tree.free_host_tokens - self.buffer.write_tokens >= int(READ_SHARE * pool):
            return False
        key = prefetch.key.cut(0, prefetch.start + prefetch.found_tokens)
        matched, node, depth = device_prefix(tree, key)
        if matched < prefetch.start:
            return True
        if depth > 0 and depth <= self.pin_limit:
            if self.pinned_tokens + depth > self.pin_limit:
                return False
            self._pin(prefetch, node, depth)
        if tree.match(key).device_tokens >= len(key):
            self._unpin(prefetch)
            return True
        trimmed = min(prefetch.found_tokens, matched - prefetch.start)
        prefetch.start += trimmed
        prefetch.found_tokens -= trimmed
        if prefetch.found_tokens > pool:
            self._unpin(prefetch)
            return True
        if prefetch.found_tokens > tree.free_host_tokens or (settings.has_states and tree.free_host_slots < 1):
            self._unpin(prefetch)
            return False
        prefetch.taken_tokens = prefetch.granted_tokens = prefetch.found_tokens
        prefetch.taken_states = int(settings.has_states)
        tree.free_host_tokens -= prefetch.taken_tokens
        tree.free_host_slots -= prefetch.taken_states
        self.buffer.read_tokens += prefetch.granted_tokens
        return True

    def finish(self, prefetch: Prefetch, read_tokens: int) -> int:
        """It has ended after ``read_tokens``. Returns how many are staged; a model with states keeps all or nothing."""
        prefetch = _own(prefetch)
        self._unpark(prefetch)
        self._end(prefetch)
        if not prefetch.is_reading:
            return 0
        keeps = self.settings.page_floor(min(read_tokens, prefetch.taken_tokens))
        is_useful = keeps == prefetch.taken_tokens if self.settings.has_states else keeps > 0
        if not is_useful:
            self._free(prefetch)
            return 0
        self.tree.free_host_tokens += prefetch.taken_tokens - keeps
        prefetch.taken_tokens = keeps
        prefetch.is_staged = True
        self.staged.append(prefetch)
        stop = prefetch.start + keeps
        self.buffer.beliefs.learn(prefetch.key, prefetch.start, stop, has_state=self.settings.has_states)
        return keeps

    def release(self, prefetch: Prefetch) -> None:
        """Its request does not need it, or is gone."""
        prefetch = _own(prefetch)
        if prefetch in self.running:
            self.finish(prefetch, 0)
        if prefetch in self.staged:
            self.staged.remove(prefetch)
            prefetch.is_staged = False
            self._free(prefetch)

    def is_lost(self, prefetch: Prefetch) -> bool:
        """L1 has lost some of what it continues: it is of no use any more."""
        prefetch = _own(prefetch)
        return prefetch in self.staged and device_prefix(self.tree, prefetch.staged_key)[0] < prefetch.start

    def hand_over(self, prefetch: StagedPrefetch) -> None:
        """Its copy to L1 has begun; who copies has the staging now."""
        self.staged.remove(prefetch)
        prefetch.is_staged = False
        self._unpin(prefetch)

    def _end(self, prefetch: Prefetch) -> None:
        self.asked_tokens -= prefetch.span_tokens
        self.running.remove(prefetch)

    def _unpark(self, prefetch: StagedPrefetch) -> None:
        if prefetch.is_parked:
            self.parked.remove(prefetch)
            prefetch.is_parked = False

    def _free(self, prefetch: StagedPrefetch) -> None:
        self._unpin(prefetch)
        self.tree.free_host_tokens += prefetch.taken_tokens
        self.tree.free_host_slots += prefetch.taken_states
        self.buffer.read_tokens -= prefetch.granted_tokens
        prefetch.taken_tokens = prefetch.taken_states = prefetch.granted_tokens = 0

    def _pin(self, prefetch: StagedPrefetch, node: Node, depth: int) -> None:
        self.tree.pin(node)
        prefetch.pinned, prefetch.pinned_tokens = node, depth
        self.pinned_tokens += depth

    def _unpin(self, prefetch: StagedPrefetch) -> None:
        if prefetch.pinned is not None:
            self.tree.unpin(prefetch.pinned)
            self.pinned_tokens -= prefetch.pinned_tokens
            prefetch.pinned, prefetch.pinned_tokens = None, 0


class StagedLoad(Load):
    """A copy from staging to L1 under way, and a state of L1 that turned out to be there already."""

    __slots__ = ("granted_tokens", "spare_slots", "staged_states", "staged_tokens")

    def __init__(self, number: int, node: Node, prefetch: StagedPrefetch, tokens: int, spare_slots: int) -> None:
        root = Lock(node)
        super().__init__(node, root, root, tokens, prefetch.taken_states)
        self.number = number
        self.staged_tokens = prefetch.taken_tokens
        self.staged_states = prefetch.taken_states
        self.granted_tokens = prefetch.granted_tokens
        self.spare_slots = spare_slots


class BufferLoads(Loads):
    """Copies from staging to L1."""

    def __init__(self, tree: Tree, device: DeviceTier, prefetches: BufferPrefetches) -> None:
        super().__init__(tree, device)
        self.prefetches = prefetches
        self.staged: dict[int, StagedLoad] = {}
        self._number = 0

    @property
    def held(self) -> tuple[int, int]:
        """Staging: tokens and states."""
        loads = self.staged.values()
        return sum(each.staged_tokens for each in loads), sum(each.staged_states for each in loads)

    @property
    def spare_slots(self) -> int:
        return sum(each.spare_slots for each in self.staged.values())

    def splice(self, request: Request, walk: Walk, prefetch: Prefetch) -> None:
        """Put what was read for ``request`` behind what L1 has, or let it go where that has become of no use. Raises
        :class:`OutOfTokens`, :class:`OutOfSlots`; it is staged still then."""
        tree, prefetch = self.tree, _own(prefetch)
        if prefetch not in self.prefetches.staged:
            return
        key = prefetch.staged_key
        matched, node, _ = device_prefix(tree, key)
        if walk.device_tokens >= len(key) or matched < prefetch.start:
            self.prefetches.release(prefetch)
            return
        locks = [tree.lock(node), tree.lock(walk.device)]
        try:
            self._take(request, len(key) - matched)
            done = insert(tree, self.device.host, key, owned_from=matched)
        finally:
            for lock in reversed(locks):
                tree.unlock(lock)
        spare = int(tree.has_states and not done.took_state)
        found = tree.match(key).device
        self.prefetches.hand_over(prefetch)
        self._number += 1
        load = StagedLoad(self._number, found, prefetch, len(key) - matched, spare)
        self.running[load.number] = self.staged[load.number] = load
        request.node = found
        request.computed_tokens = len(key)
        request.host_hit_tokens = len(key) - walk.device_tokens

    def finish(self, number: int) -> None:
        """The copy is made, and its staging free."""
        del self.running[number]
        load = self.staged.pop(number)
        self.tree.free_host_tokens += load.staged_tokens
        self.tree.free_host_slots += load.staged_states
        self.tree.free_slots += load.spare_slots
        self.prefetches.buffer.read_tokens -= load.granted_tokens

    def _take(self, request: Request, tokens: int) -> None:
        """KV, the node's state, and the request's own where it has none; all or nothing."""
        tree, device = self.tree, self.device
        if not device.room_for(tokens):
            raise OutOfTokens(f"{tokens} tokens wanted for what was read, {tree.free_tokens} free")
        if not tree.has_states:
            device.take_tokens(tokens)
            return
        own = int(request.slots == 0)
        device.take_states(own)
        tree.free_tokens -= tokens
        try:
            device.take_states(1)
        except OutOfSlots:
            tree.free_tokens += tokens
            device.give_states(own)
            raise
        request.slots = 1


def device_prefix(tree: Tree, key: Key) -> tuple[int, Node, int]:
    """KV of ``key`` in L1, with or without states: tokens, the node that the last of them is in, and that one's depth.
    Nothing is refreshed, nothing split."""
    node, at, depth, length = tree.root, 0, 0, tree.settings.page_floor(len(key))
    while at < length:
        child = node.children.get(key.page(at, tree.page))
        if child is None or not child.device:
            break
        same = tree.settings.page_floor(min(child.key.common(key, at), length - at))
        node, depth, at = child, depth + child.tokens, at + same
        if same < child.tokens:
            break
    return at, node, depth


def _own(prefetch: Prefetch) -> StagedPrefetch:
    if not isinstance(prefetch, StagedPrefetch):
        raise TypeError("a prefetch of an engine with L2")
    return prefetch

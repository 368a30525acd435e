"""L2: backing up what is in L1, and making room.

A backup under way holds its node in L1 until :meth:`HostTier.finish_write` says that the copy is made; virtual time,
not this module, decides when that is. Follows ``unified_radix_cache.py`` and ``components/mamba.py``.
"""

from __future__ import annotations

import heapq

from serve.twin.tiers_model import Tier, TierSettings
from serve.twin.tiers_node import Node
from serve.twin.tiers_observer import StateCause, TiersObserver
from serve.twin.tiers_storage import Storage
from serve.twin.tiers_tree import Lock, Tree


class Write:
    """A copy from L1 to L2 under way."""

    __slots__ = ("lock", "nodes", "number", "states", "tokens")

    def __init__(self, number: int, node: Node, lock: Lock | None, tokens: int, states: int) -> None:
        self.number = number
        self.nodes = [node]
        """All that the node has been split into meanwhile, from the root down."""
        self.lock = lock
        self.tokens = tokens
        self.states = states


class StorageWrite:
    """A copy to L3 under way."""

    __slots__ = ("lock", "tokens")

    def __init__(self, tokens: int, lock: Lock | None = None) -> None:
        self.tokens = tokens
        self.lock = lock


class HostTier:
    """What L2 holds, and its copies to L3."""

    def __init__(self, tree: Tree, storage: Storage) -> None:
        self.tree = tree
        self.storage = storage
        self.settings: TierSettings = tree.settings
        self.writes: dict[int, Write] = {}
        self.storage_writes: dict[int, StorageWrite] = {}
        self._storage_number = 0
        self.dropped_tokens = 0
        """KV that fell out of L2."""

    @property
    def staged(self) -> tuple[int, int]:
        """Tokens and states that are L2's but not the tree's: none."""
        return 0, 0

    # Room

    def evict_tokens(self, tokens: int) -> int:
        """Free at least ``tokens`` of L2's KV if that can be; returns how many."""
        tree = self.tree
        freed = self._drop_duplicates(tokens) if self.settings.is_write_back else 0
        heap = [(tree.order_of(node), node) for node in tree.host_leaves]
        heapq.heapify(heap)
        while freed < tokens and heap:
            _, node = heapq.heappop(heap)
            if node not in tree.host_leaves:
                continue
            freed += self._evict_leaf(node)[0]
            parent = node.parent
            if parent in tree.host_leaves:
                heapq.heappush(heap, (tree.order_of(parent), parent))
        self.dropped_tokens += freed
        return freed

    def evict_states(self, states: int) -> int:
        """Free L2's least recently used states. A leaf goes with its KV, an inner node keeps it and is resumable no
        longer."""
        tree = self.tree
        freed = 0
        order = tree.host_state_order
        node = next((node for node in order.after(None) if node.state_host_locks == 0), None)
        while freed < states and node is not None and node in order:
            following = next((node for node in order.after(node) if node.state_host_locks == 0), None)
            if node in tree.host_leaves:
                freed += self._evict_leaf(node)[1]
            else:
                freed += tree.drop_host_state(node)
                tree.update_leaf(node)
            node = following
        return freed

    def take_tokens(self, tokens: int) -> bool:
        """Evicts just what is missing."""
        missing = tokens - self.tree.free_host_tokens
        if missing > 0 and self.evict_tokens(missing) < missing:
            return False
        if tokens > self.tree.free_host_tokens:
            return False
        self.tree.free_host_tokens -= tokens
        return True

    def take_state(self) -> bool:
        if self.tree.free_host_slots == 0:
            self.evict_states(1)
        if self.tree.free_host_slots == 0:
            return False
        self.tree.free_host_slots -= 1
        return True

    def _evict_leaf(self, node: Node) -> tuple[int, int]:
        tree = self.tree
        tokens = tree.drop_host(node)
        states = tree.drop_host_state(node)
        tree.drop_state(node)
        tree.remove(node)
        more_tokens, more_states = self.prune(node.above)
        return tokens + more_tokens, states + more_states

    def prune(self, node: Node) -> tuple[int, int]:
        """Remove childless ancestors that hold no KV; returns tokens and states of L2 that this freed."""
        tree = self.tree
        tokens = states = 0
        while node.parent is not None and not node.children and not node.is_locked:
            if node.device:
                tree.update_leaf(node)
                break
            tree.drop_state(node)
            if node.host:
                tree.update_leaf(node)
                break
            states += tree.drop_host_state(node)
            tree.remove(node)
            tree.update_leaf(node.parent)
            node = node.parent
        return tokens, states

    def _drop_duplicates(self, tokens: int) -> int:
        """write_back frees copies of what is in L1 first; those whose L1 copy is next to fall last."""
        tree = self.tree
        freed = 0
        for spares_leaves in (True, False):
            for node in list(tree.duplicates.values()):
                if freed >= tokens:
                    return freed
                if not (node.device and node.host):
                    del tree.duplicates[node.number]
                    continue
                if (spares_leaves and node in tree.device_leaves) or node.host_locks or node.load or node.write:
                    continue
                freed += tree.drop_host(node)
                del tree.duplicates[node.number]
        return freed

    # Backing up

    def launch(self) -> bool:
        """Start what waits to be copied: nothing, here a copy is started at once."""
        return False

    def chain_of(self, node: Node) -> list[Node]:
        """A node with its ancestors that have no copy yet, which go first."""
        chain = [node]
        upward = node.parent
        while upward is not None and upward.parent is not None and not upward.host:
            chain.append(upward)
            upward = upward.parent
        chain.reverse()
        return chain

    def back_up(self, nodes: list[Node], *, holds: bool = True) -> bool:
        """Start a copy of each node's KV and state that L2 lacks. Stops at the first that finds no room; ``False`` then
        or where nothing was to do. ``holds``: L1 may not drop the node before the copy is made."""
        tree = self.tree
        written = False
        for node in nodes:
            tokens = 0 if node.host else node.tokens
            has_state = node.state_device and not node.state_host
            if tokens == 0 and not has_state:
                continue
            if not self.take_tokens(tokens):
                return False
            if has_state and not self.take_state():
                tree.free_host_tokens += tokens
                return False
            node.host = True
            node.state_host = node.state_host or has_state
            lock = tree.lock(node) if holds else None
            node.write = node.number
            self.writes[node.number] = Write(node.number, node, lock, tokens, int(has_state))
            written = tokens > 0
        return written

    def note_splits(self) -> None:
        """Make each backup under way cover both parts of a node that has been split."""
        for number, upper, lower in self.tree.split_writes:
            write = self.writes.get(number)
            if write is not None:
                write.nodes[write.nodes.index(lower) : write.nodes.index(lower) + 1] = [upper, lower]
        self.tree.split_writes.clear()

    def finish_write(self, number: int) -> None:
        """The copy is made: L1 may drop the node, and L3 gets it too."""
        self.note_splits()
        write = self.writes.pop(number)
        if self.tree.observer is not None:
            _tell_copied(self.tree.observer, write)
        for node in write.nodes:
            if node.write == number:
                node.write = None
                self.tree.update_duplicate(node)
        if write.lock is not None:
            self.tree.unlock(write.lock)
        if self.settings.has_storage:
            for node in write.nodes:
                self._store(node)

    def finish_storage_write(self, number: int) -> None:
        write = self.storage_writes.pop(number)
        if write.lock is not None:
            self.tree.unlock(write.lock)

    def _store(self, node: Node) -> None:
        if not node.host:
            return
        if self.tree.observer is not None:
            self.tree.observer.storage_written(node, has_state=node.state_host)
        self.storage.put(node, has_state=node.state_host)
        self._storage_number += 1
        self.storage_writes[self._storage_number] = StorageWrite(node.tokens, self.tree.lock_host(node))


def _tell_copied(observer: TiersObserver, write: Write) -> None:
    """Also of KV that was there before, when only the state was copied (``finish_write_through``)."""
    for node in write.nodes:
        observer.kv_stored(node, Tier.L2)
    if write.states:
        observer.state_stored(write.nodes[-1], Tier.L2, StateCause.BACKED_UP)

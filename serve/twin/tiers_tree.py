"""The radix tree: who is where, what is locked, what may be evicted, how much of each pool is free.

Everything that moves KV or states between tiers goes through this class's few changes, so that the books of four pools
(tokens and states in L1 and L2) are kept in one place. Follows ``unified_cache/unified_tree_core.py`` and its
components ``full.py`` and ``mamba.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from serve.twin.tiers_key import Key
from serve.twin.tiers_model import EvictionPolicy, Tier, TierSettings
from serve.twin.tiers_node import Node, UseOrder
from serve.twin.tiers_observer import StateCause, TiersObserver

_PARENT_OLDER = 1e-5
"""A match makes each node this much older than its child (``unified_tree_core.py``, ``_match_post_processor``)."""
Order = tuple[float, float]


class Lock:
    """What was locked; the tree takes it back once."""

    __slots__ = ("host_token", "is_host", "node")

    def __init__(self, node: Node, *, is_host: bool = False, host_token: int | None = None) -> None:
        self.node = node
        self.is_host = is_host
        self.host_token = host_token


class Walk:
    """What a key meets in the tree."""

    __slots__ = ("best", "best_tokens", "device", "device_tokens", "host_tokens", "kv_tokens")

    def __init__(self, root: Node) -> None:
        self.best = root
        """Deepest node whose KV and state are on L1 or L2."""
        self.best_tokens = 0
        self.device = root
        """Deepest node that has both on L1."""
        self.device_tokens = 0
        self.host_tokens = 0
        """Between the two, what L2 has a copy of."""
        self.kv_tokens = 0
        """KV that is there at all, with or without a state."""


class Tree:
    """Books and structure. Nothing here decides what to evict."""

    def __init__(self, settings: TierSettings, observer: TiersObserver | None = None) -> None:
        self.settings = settings
        self.observer = observer
        self.page = settings.page_tokens
        self.has_states = settings.has_states
        self.has_host = settings.has_host
        self.free_tokens = settings.page_floor(settings.device_tokens)
        self.free_slots = settings.device_slots
        self.free_host_tokens = settings.page_floor(settings.host_tokens)
        self.free_host_slots = settings.host_slots
        self.evictable_tokens = 0
        """In L1, locked by nobody."""
        self.evictable_slots = 0
        self.device_leaves: set[Node] = set()
        self.host_leaves: set[Node] = set()
        self.state_order = UseOrder()
        self.host_state_order = UseOrder()
        """States that are in L2 only."""
        self.duplicates: dict[int, Node] = {}
        """KV that is in L1 and L2 with no transfer under way, oldest first; what write_back drops first."""
        self.split_writes: list[tuple[int, Node, Node]] = []
        """Splits of nodes whose backup is under way: its number, the upper part, the lower part."""
        self.nodes = 0
        self._clock = 1.0
        self._numbers = 0
        self._tokens_of_locks = 0
        self.root = Node(0, None, Key(), -sys.maxsize, 0.0)
        self.root.device = True
        self.root.locks = 1

    def tick(self) -> float:
        self._clock += 1.0
        return self._clock

    def order_of(self, node: Node) -> Order:
        """The smallest falls first (``mem_cache/evict_policy.py``)."""
        match self.settings.eviction:
            case EvictionPolicy.LRU:
                return (0, node.access)
            case EvictionPolicy.LFU:
                return (node.hits, node.access)
            case EvictionPolicy.SLRU:
                return (node.hits >= self.settings.slru_protected_hits, node.access)
            case EvictionPolicy.PRIORITY:
                return (node.priority, node.access)

    def walk_nodes(self) -> Iterator[Node]:
        """All but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # Finding

    def match(self, key: Key) -> Walk:
        """Walk, split where the key ends or departs inside a node, and refresh what is usable."""
        found = Walk(self.root)
        node, at, length = self.root, 0, self.settings.page_floor(len(key))
        while at < length:
            child = node.children.get(key.page(at, self.page))
            if child is None or not (child.device or child.host):
                break
            same = self.settings.page_floor(min(child.key.common(key, at), length - at))
            node = child if same == child.tokens else self.split(child, same)
            at += same
            found.kv_tokens = at
            if self._is_usable(node, on_device=False):
                found.best, found.best_tokens = node, at
            if self._is_usable(node, on_device=True):
                found.device, found.device_tokens = node, at
            if node is not child:
                break
        self._refresh(found.best)
        upward = found.best
        while upward is not found.device and upward.parent is not None:
            if upward.host:
                found.host_tokens += upward.tokens
            upward = upward.parent
        return found

    def peek(self, key: Key) -> tuple[int, int]:
        """Tokens that :meth:`match` would find usable in L1, and in all; nothing is refreshed, nothing split."""
        node, at, length = self.root, 0, self.settings.page_floor(len(key))
        on_device = at_all = 0
        while at < length:
            child = node.children.get(key.page(at, self.page))
            if child is None or at + child.tokens > length or child.key.common(key, at) < child.tokens:
                break
            node, at = child, at + child.tokens
            at_all = at if self._is_usable(node, on_device=False) else at_all
            on_device = at if self._is_usable(node, on_device=True) else on_device
        return on_device, at_all

    def _is_usable(self, node: Node, *, on_device: bool) -> bool:
        if on_device or not self.has_host:
            return node.device and (node.state_device or not self.has_states)
        return (node.device or node.host) and (node.state_device or node.state_host or not self.has_states)

    def _refresh(self, node: Node) -> None:
        if node.state_device:
            self.state_order.touch(node)
        access = self.tick()
        upward: Node | None = node
        while upward is not None:
            upward.access = access
            access -= _PARENT_OLDER
            upward = upward.parent

    # Structure

    def add_child(self, parent: Node, key: Key, priority: int) -> Node:
        self._numbers += 1
        node = Node(self._numbers, parent, key, priority, self.tick())
        parent.children[key.page(0, self.page)] = node
        self.nodes += 1
        return node

    def split(self, child: Node, tokens: int) -> Node:
        """Put a new node above ``child`` for its first ``tokens``. The child stays who it is and keeps its state."""
        upper = self.add_child(child.above, child.key.cut(0, tokens), child.priority)
        upper.hits = child.hits
        upper.created = child.created
        upper.device, upper.host = child.device, child.host
        upper.locks, upper.host_locks = child.locks, child.host_locks
        upper.host_token, child.host_token = child.host_token, None
        upper.load = child.load
        child.key = child.key.cut(tokens, child.tokens)
        child.tokens -= tokens
        child.parent = upper
        upper.children[child.key.page(0, self.page)] = child
        upper.device_children = int(child.device)
        if child.write is not None:
            upper.write = child.write
            self.split_writes.append((child.write, upper, child))
        child.access = self.tick()
        self.update_leaf(upper)
        self.update_leaf(child)
        self.update_duplicate(upper)
        if self.observer is not None:
            self.observer.node_split(upper, child)
        return upper

    def remove(self, node: Node) -> None:
        """Take a node that holds nothing and has no children out of the tree."""
        del node.above.children[node.key.page(0, self.page)]
        self.device_leaves.discard(node)
        self.host_leaves.discard(node)
        self.duplicates.pop(node.number, None)
        self.nodes -= 1
        if self.observer is not None:
            self.observer.node_removed(node)

    def update_leaf(self, node: Node) -> None:
        """A leaf of L1 is what may be evicted from it: no child there, nobody holds it. So for L2, with no child."""
        held = node.locks > 0 or node.state_locks > 0
        if node.device and not held and node.device_children == 0 and node.parent is not None:
            self.device_leaves.add(node)
        else:
            self.device_leaves.discard(node)
        if (
            node.host
            and not node.device
            and not held
            and node.host_locks == 0
            and node.state_host_locks == 0
            and not node.children
        ):
            self.host_leaves.add(node)
        else:
            self.host_leaves.discard(node)

    def update_duplicate(self, node: Node) -> None:
        if node.device and node.host and node.write is None and node.load is None and node.parent is not None:
            self.duplicates.setdefault(node.number, node)
        else:
            self.duplicates.pop(node.number, None)

    # KV and states on the tiers

    def put_device(self, node: Node) -> None:
        """The node's KV is in L1 now; whoever calls has taken it from the free tokens."""
        node.device = True
        node.above.device_children += 1
        if node.locks == 0:
            self.evictable_tokens += node.tokens
        self.update_leaf(node)
        self.update_leaf(node.above)
        if self.observer is not None:
            self.observer.kv_stored(node, Tier.L1)

    def drop_device(self, node: Node) -> int:
        """Free its KV in L1; returns tokens. Leaves are for the caller to update."""
        if not node.device:
            return 0
        node.device = False
        node.above.device_children -= 1
        self.evictable_tokens -= node.tokens
        self.free_tokens += node.tokens
        if self.observer is not None:
            self.observer.kv_removed(node, Tier.L1)
        return node.tokens

    def drop_host(self, node: Node) -> int:
        if not node.host:
            return 0
        node.host = False
        self.free_host_tokens += node.tokens
        if self.observer is not None:
            self.observer.kv_removed(node, Tier.L2)
        return node.tokens

    def put_state(self, node: Node, cause: StateCause) -> None:
        """A state is in L1 now, as the most recently used; taken from the free slots by whoever calls."""
        node.state_device = True
        self.host_state_order.discard(node)
        self.state_order.add(node)
        if node.state_locks == 0:
            self.evictable_slots += 1
        if self.observer is not None:
            self.observer.state_stored(node, Tier.L1, cause)

    def drop_state(self, node: Node) -> int:
        """Free its state in L1; a copy in L2 becomes evictable there."""
        if not node.state_device:
            return 0
        node.state_device = False
        self.state_order.discard(node)
        self.evictable_slots -= 1
        self.free_slots += 1
        if node.state_host and node not in self.host_state_order:
            self.host_state_order.add(node)
        if self.observer is not None:
            self.observer.state_removed(node, Tier.L1)
        return 1

    def drop_host_state(self, node: Node) -> int:
        if not node.state_host:
            return 0
        node.state_host = False
        self.host_state_order.discard(node)
        self.free_host_slots += 1
        if self.observer is not None:
            self.observer.state_removed(node, Tier.L2)
        return 1

    # Locks

    def lock(self, node: Node) -> Lock:
        """Hold a path's KV and its last node's state in L1."""
        self._hold_path(node)
        if node.parent is not None and self.has_states:
            if node.state_locks == 0 and node.state_device:
                self.evictable_slots -= 1
            node.state_locks += 1
        self.update_leaf(node)
        return Lock(node)

    def unlock(self, lock: Lock) -> None:
        if lock.is_host:
            self._unlock_host(lock)
            return
        node = lock.node
        if node.parent is not None and self.has_states:
            node.state_locks -= 1
            if node.state_locks == 0 and node.state_device:
                self.evictable_slots += 1
        self.unpin(node)

    def pin(self, node: Node) -> None:
        """Hold a path's KV in L1, and no state."""
        self._hold_path(node)
        self.update_leaf(node)

    def unpin(self, node: Node) -> None:
        upward = node
        while upward.parent is not None:
            upward.locks -= 1
            if upward.locks == 0:
                if upward.device:
                    self.evictable_tokens += upward.tokens
                self.update_leaf(upward)
            upward = upward.parent
        self.update_leaf(node)

    def _hold_path(self, node: Node) -> None:
        upward = node
        while upward.parent is not None:
            if upward.locks == 0 and upward.device:
                self.evictable_tokens -= upward.tokens
                self.device_leaves.discard(upward)
            upward.locks += 1
            upward = upward.parent

    def lock_host(self, node: Node) -> Lock:
        """Hold one node's copies in L2, and what it is split into."""
        lock = Lock(node, is_host=True)
        if node.parent is None:
            return lock
        if node.host or self.settings.is_write_back:
            if node.host_token is None:
                self._tokens_of_locks += 1
                node.host_token = self._tokens_of_locks
            lock.host_token = node.host_token
            node.host_locks += 1
        if self.has_states:
            if node.state_host_locks == 0 and node.state_host:
                self.host_state_order.discard(node)
            node.state_host_locks += 1
        self.update_leaf(node)
        return lock

    def _unlock_host(self, lock: Lock) -> None:
        node = lock.node
        if node.parent is None:
            return
        if self.has_states:
            node.state_host_locks -= 1
            only_host = node.state_host and not node.state_device
            if node.state_host_locks == 0 and only_host and node not in self.host_state_order:
                self.host_state_order.add(node)
            self.update_leaf(node)
        if lock.host_token is None:
            return
        upward = node
        while upward.parent is not None and (upward.host or self.settings.is_write_back):
            upward.host_locks -= 1
            self.update_leaf(upward)
            if upward.host_token == lock.host_token:
                return
            upward = upward.parent

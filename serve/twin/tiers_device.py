"""L1: making room for KV and states. Follows ``_evict_components`` of ``unified_radix_cache.py``."""

from __future__ import annotations

import heapq

from serve.twin.tiers_host import HostTier
from serve.twin.tiers_model import OutOfSlots, OutOfTokens
from serve.twin.tiers_node import Node
from serve.twin.tiers_tree import Tree


class DeviceTier:
    """Evicts leaves of KV in the policy's order, states in the order of last use."""

    def __init__(self, tree: Tree, host: HostTier) -> None:
        self.tree = tree
        self.host = host
        self.settings = tree.settings
        self.demoted_tokens = 0
        """KV that fell from L1 with a copy in L2."""
        self.dropped_tokens = 0
        """KV that fell from L1 and had none."""
        self.dropped_states = 0
        """States that fell from L1 and have no copy."""

    # Taking

    def room_for(self, tokens: int) -> bool:
        """Evict until ``tokens`` are free. Nothing is taken."""
        missing = tokens - self.tree.free_tokens
        if missing > 0:
            self._evict_leaves(until_free=tokens)
        return self.tree.free_tokens >= tokens

    def take_tokens(self, tokens: int) -> None:
        """Raises :class:`OutOfTokens` when they are not free."""
        if tokens > self.tree.free_tokens:
            raise OutOfTokens(f"{tokens} tokens wanted, {self.tree.free_tokens} free")
        self.tree.free_tokens -= tokens

    def give_tokens(self, tokens: int) -> None:
        self.tree.free_tokens += tokens

    def room_for_states(self, states: int) -> bool:
        missing = states - self.tree.free_slots
        if missing > 0:
            self.evict_states(missing, until_free=states)
        return self.tree.free_slots >= states

    def take_states(self, states: int) -> None:
        """Evicts what is missing. Raises :class:`OutOfSlots`."""
        if not self.room_for_states(states):
            raise OutOfSlots(f"{states} states wanted, {self.tree.free_slots} free")
        self.tree.free_slots -= states

    def give_states(self, states: int) -> None:
        self.tree.free_slots += states

    # Evicting

    def evict_tokens(self, tokens: int) -> int:
        """Free ``tokens`` whatever is free already, in whole nodes; returns how many."""
        return self._evict_leaves(at_least=tokens)

    def _evict_leaves(self, *, at_least: int | None = None, until_free: int = 0) -> int:
        tree = self.tree
        heap = [(tree.order_of(node), node) for node in tree.device_leaves]
        heapq.heapify(heap)
        freed = 0
        while heap and (at_least is None or freed < at_least):
            _, node = heapq.heappop(heap)
            if node not in tree.device_leaves:
                continue
            parent = node.parent
            freed += self.evict_leaf(node)
            if at_least is None and tree.free_tokens >= until_free:
                break
            if parent in tree.device_leaves:
                heapq.heappush(heap, (tree.order_of(parent), parent))
        self._finish_writes_back()
        return freed

    def evict_states(self, states: int, *, until_free: int | None = None) -> None:
        """Free up to ``states`` of L1's states: a leaf goes with its KV, of an inner node only the state."""
        tree = self.tree
        order = tree.state_order
        goal = tree.free_slots + states
        cursor = next((node for node in order.after(None) if node.state_locks == 0), None)
        while cursor is not None and tree.free_slots < goal:
            node = cursor
            cursor = next((other for other in order.after(node) if other.state_locks == 0), None)
            if node in tree.device_leaves:
                self.evict_leaf(node)
            else:
                self._evict_inner_state(node)
            if until_free is not None and tree.free_slots >= until_free:
                break
            if cursor is not None and cursor not in order:
                cursor = next((other for other in order.after(None) if other.state_locks == 0), None)
        self._finish_writes_back()

    def _evict_inner_state(self, node: Node) -> None:
        if self.settings.is_write_back and self.tree.has_host and not node.state_host and not node.host and node.device:
            if self.tree.free_host_slots < 1:
                self.host.evict_states(1)
            self._write_back(node)
        if node.state_device and node.state_locks == 0:
            if not node.state_host:
                self.dropped_states += 1
            self.tree.drop_state(node)
            self.tree.update_leaf(node)

    def evict_leaf(self, node: Node) -> int:
        """Demote a leaf to L2 where it has a copy, delete it otherwise; returns tokens."""
        if node.host:
            return self._demote(node)
        if self.settings.is_write_back and self.tree.has_host:
            if self._write_back(node):
                return self._demote(node)
            return self._drop_subtree(node)
        return self._delete(node)

    def _demote(self, node: Node) -> int:
        tree = self.tree
        if node.state_device and not node.state_host:
            self.dropped_states += 1
        tokens = tree.drop_device(node)
        tree.drop_state(node)
        tree.update_leaf(node)
        if node.state_host and node not in tree.host_state_order:
            tree.host_state_order.add(node)
        tree.update_leaf(node.above)
        self.demoted_tokens += tokens
        return tokens

    def _delete(self, node: Node) -> int:
        tree = self.tree
        tree.drop_host_state(node)
        tokens = tree.drop_device(node)
        self.dropped_states += tree.drop_state(node)
        tree.remove(node)
        tree.update_leaf(node.above)
        self.host.prune(node.above)
        self.dropped_tokens += tokens
        return tokens

    def _write_back(self, node: Node) -> bool:
        """Copy at once, as an engine waits here for the transfer."""
        self._finish_writes_back()
        written = self.host.back_up([node], holds=False)
        self._finish_writes_back()
        return written

    def _finish_writes_back(self) -> None:
        if self.settings.is_write_back:
            for number in list(self.host.writes):
                self.host.finish_write(number)

    def _drop_subtree(self, node: Node) -> int:
        """write_back with L2 full: what has no room falls, with all below it, unless somebody holds a part."""
        tree = self.tree
        below: list[Node] = []
        stack = [node]
        while stack:
            each = stack.pop()
            if each.write is not None or each.load is not None or each.is_locked:
                return 0
            below.append(each)
            stack.extend(each.children.values())
        for each in reversed(below[1:]):
            tree.drop_host(each)
            tree.drop_host_state(each)
            tree.drop_state(each)
            tree.remove(each)
        return self._delete(node)

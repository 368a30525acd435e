"""Backups of an engine whose host memory is staging only: L1 to staging, staging to L3, staging free again.

``buffer_only``: nothing is ever found in L2. What is to be written waits in one queue, the KV and the state of a node
each for itself; a write holds its node in L1 until it is staged, and its staging until L3 has it. Follows the backup
half of ``buffer_mode/pipeline.py``; its cap of the queue, which live nodes cannot reach, is left out.
"""

from __future__ import annotations

from collections import deque

from serve.twin.tiers_beliefs import Beliefs
from serve.twin.tiers_host import HostTier, StorageWrite, Write
from serve.twin.tiers_node import Believed, Node
from serve.twin.tiers_storage import Storage
from serve.twin.tiers_tree import Tree

WRITE_SHARE = 0.2
"""``HICACHE_WRITE_STAGING_POOL_FRACTION``: of the staging, which writes have whatever is read."""
RESERVED_PART = 10
"""One part in so many of the staging is not for writes."""
Want = tuple[int, bool]
"""A node's number; whether it is about its state."""


class Intent:
    """One node's KV, or its state, to be written. Holds nothing: the node may fall or be split before its turn."""

    __slots__ = ("is_state", "node", "parent", "tokens")

    def __init__(self, node: Node, *, is_state: bool) -> None:
        self.node = node
        self.parent = node.above
        self.tokens = node.tokens
        self.is_state = is_state

    @property
    def want(self) -> Want:
        return self.node.number, self.is_state

    @property
    def is_whole(self) -> bool:
        """The node is what it was."""
        return self.node.device and self.node.tokens == self.tokens

    def pieces(self) -> list[Node]:
        """What a split has made of the node, from the root down; empty: it has fallen."""
        found: list[Node] = []
        node, left = self.node, self.tokens
        while left > 0:
            if node.parent is None or not node.device or node.tokens > left:
                return []
            found.append(node)
            left -= node.tokens
            node = node.parent
        found.reverse()
        return found if node is self.parent else []


class StagedWrite(StorageWrite):
    """What is staged, on its way to L3."""

    __slots__ = ("end", "states", "want")

    def __init__(self, write: Write, end: Believed, want: Want) -> None:
        super().__init__(write.tokens)
        self.states = write.states
        self.end = end
        self.want = want


class BufferTier(HostTier):
    """Staging, as far as writes go."""

    def __init__(self, tree: Tree, storage: Storage, beliefs: Beliefs) -> None:
        super().__init__(tree, storage)
        self.beliefs = beliefs
        self.queue: deque[Intent] = deque()
        self.pending: set[Want] = set()
        """Queued, being staged, or on the way to L3."""
        self.read_tokens = 0
        """Of the staging, that reads have been granted."""
        self.write_tokens = 0
        """Of the staging, that writes hold."""
        self._ends: dict[int, tuple[Believed, Want]] = {}
        self._staged: dict[int, StagedWrite] = {}
        self._number = 0

    @property
    def staged(self) -> tuple[int, int]:
        under_way = [(each.tokens, each.states) for each in self.writes.values()]
        under_way += [(each.tokens, each.states) for each in self._staged.values()]
        return sum(tokens for tokens, _ in under_way), sum(states for _, states in under_way)

    def evict_tokens(self, tokens: int) -> int:
        """Nothing: staging belongs to who copies through it."""
        return 0

    def evict_states(self, states: int) -> int:
        return 0

    # Queueing

    def back_up(self, nodes: list[Node], *, holds: bool = True) -> bool:
        """Queue what L3 is not believed to have. A node below one that has been left out is left out, too: L3 could
        never show it."""
        before = len(self.queue)
        for node in nodes:
            if not node.device:
                continue
            wanted = [is_state for is_state in (False, True) if self._lacks(node, is_state=is_state)]
            has_way = bool(wanted) and self._has_way_to(node)
            for is_state in wanted:
                intent = Intent(node, is_state=is_state)
                if intent.want in self.pending or not has_way or self._is_oversize(intent):
                    continue
                self.queue.append(intent)
                self.pending.add(intent.want)
        return len(self.queue) > before

    def _lacks(self, node: Node, *, is_state: bool) -> bool:
        end = self.beliefs.of(node)
        if is_state:
            return node.state_device and not self.beliefs.has_state(end)
        return not self.beliefs.has_pages(end, node.tokens)

    def _has_way_to(self, node: Node) -> bool:
        parent = node.above
        return parent.parent is None or (parent.number, False) in self.pending or self.beliefs.of(parent).stored

    def _is_oversize(self, intent: Intent) -> bool:
        if intent.is_state:
            return self.settings.host_slots - self.settings.host_slots // RESERVED_PART < 1
        return intent.node.tokens > self.settings.host_tokens

    def _refresh(self) -> None:
        """Take out what has fallen, put its pieces in the place of what was split; the first of equals stays."""
        queued = {intent.want for intent in self.queue}
        kept: dict[Want, Intent] = {}
        for intent in self.queue:
            if intent.want in kept:
                continue
            if intent.is_whole:
                kept[intent.want] = intent
                continue
            self.pending.discard(intent.want)
            for piece in intent.pieces():
                want = (piece.number, intent.is_state)
                is_under_way = want in self.pending and want not in queued
                if want in kept or is_under_way or not self._lacks(piece, is_state=intent.is_state):
                    continue
                kept[want] = Intent(piece, is_state=intent.is_state)
                self.pending.add(want)
        self.queue = deque(kept.values())

    # Copying

    def launch(self) -> bool:
        """Stage what there is room for, in order; reads go first."""
        if not self.queue:
            return False
        self._refresh()
        pool = self.settings.page_floor(self.settings.host_tokens)
        limit = max(int(WRITE_SHARE * pool), pool - self.read_tokens - pool // RESERVED_PART)
        started = False
        while self.queue:
            intent = self.queue[0]
            is_due = self._has_way_to(intent.node) and self._lacks(intent.node, is_state=intent.is_state)
            if is_due and not self._is_oversize(intent):
                if not self._has_room_for(intent, limit):
                    break
                self._stage(intent)
                started = True
            else:
                self.pending.discard(intent.want)
            self.queue.popleft()
        return started

    def _has_room_for(self, intent: Intent, limit: int) -> bool:
        if intent.is_state:
            return self.tree.free_host_slots - self.settings.host_slots // RESERVED_PART >= 1
        return self.write_tokens < limit and intent.tokens <= self.tree.free_host_tokens

    def _stage(self, intent: Intent) -> None:
        tree, node = self.tree, intent.node
        tokens, states = (0, 1) if intent.is_state else (node.tokens, 0)
        tree.free_host_tokens -= tokens
        tree.free_host_slots -= states
        self.write_tokens += tokens
        end = self.beliefs.of(node)
        self.beliefs.write(end, tokens, states)
        self._number += 1
        self._ends[self._number] = (end, intent.want)
        self.writes[self._number] = Write(self._number, node, tree.lock(node), tokens, states)

    def finish_write(self, number: int) -> None:
        """It is staged: L1 may drop the node, and L3 gets it."""
        write = self.writes.pop(number)
        end, want = self._ends.pop(number)
        self._store_all(write)
        if write.lock is not None:
            self.tree.unlock(write.lock)
        staged = StagedWrite(write, end, want)
        self.storage_writes[number] = self._staged[number] = staged

    def _store_all(self, write: Write) -> None:
        """All that the node has been split into meanwhile; a state whose pages L3 has lost is of no use to anybody."""
        node, left, path = write.nodes[0], write.tokens, write.nodes[0].path
        start = len(path) - node.tokens
        if write.states and self.storage.find(path, self.tree.root, start, needs_state=False) < node.tokens:
            return
        pieces = [node]
        while (left := left - pieces[-1].tokens) > 0:
            pieces.append(pieces[-1].above)
        for piece in reversed(pieces):
            if self.tree.observer is not None:
                self.tree.observer.storage_written(piece, has_state=write.states > 0)
            self.storage.put(piece, has_state=write.states > 0)

    def finish_storage_write(self, number: int) -> None:
        del self.storage_writes[number]
        staged = self._staged.pop(number)
        self.beliefs.written(staged.end, staged.tokens, staged.states)
        self.tree.free_host_tokens += staged.tokens
        self.tree.free_host_slots += staged.states
        self.write_tokens -= staged.tokens
        self.pending.discard(staged.want)

"""From L3 to L2, while a request waits in the queue. Follows ``prefetch_from_storage`` of ``unified_radix_cache.py``.

A prefetch has three moments: it is asked for, L3 answers what it has (room is taken then), and it ends, complete or cut
by its policy. Virtual time decides when, this module what follows.
"""

from __future__ import annotations

from serve.twin.tiers_host import HostTier
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import PrefetchPolicy, Tier
from serve.twin.tiers_node import Node
from serve.twin.tiers_observer import StateCause
from serve.twin.tiers_tree import Lock, Tree, Walk


class Prefetch:
    """One request's span that L3 is asked for."""

    __slots__ = (
        "anchor",
        "found_tokens",
        "is_parked",
        "is_staged",
        "key",
        "lock",
        "span_tokens",
        "start",
        "taken_tokens",
    )

    def __init__(self, key: Key, start: int, anchor: Node, lock: Lock) -> None:
        self.key = key
        """From the context's first token to the last that is asked for."""
        self.start = start
        """Tokens that L1 and L2 have."""
        self.span_tokens = len(key) - start
        self.anchor = anchor
        self.lock = lock
        self.found_tokens = 0
        self.taken_tokens = 0
        """Of L2; what is read. 0: nothing is."""
        self.is_parked = False
        """L3 has it, and there is no room to read it now (``buffer_only``)."""
        self.is_staged = False
        """It has been read, and waits for its request to be admitted (``buffer_only``)."""

    @property
    def is_reading(self) -> bool:
        """It has been given room."""
        return self.taken_tokens > 0


class Prefetches:
    """All prefetches under way, and how much of L2 they have asked for."""

    def __init__(self, tree: Tree, host: HostTier) -> None:
        self.tree = tree
        self.host = host
        self.settings = tree.settings
        self.asked_tokens = 0
        self.running: list[Prefetch] = []

    @property
    def held(self) -> tuple[int, int]:
        """Tokens and states of L2."""
        reading = [each for each in self.running if each.is_reading]
        return sum(each.taken_tokens for each in reading), len(reading) * int(self.settings.has_states)

    def start(self, key: Key, walk: Walk) -> Prefetch | None:
        """Ask for what ``walk``, the match of ``key``, has not found. ``None``: too short, no L3, or others have asked
        for too much already."""
        settings = self.settings
        anchor = walk.best
        start = walk.device_tokens + walk.host_tokens
        span = settings.page_floor(len(key) - start)
        if not settings.has_storage or not (anchor.host or anchor.parent is None):
            return None
        if span < settings.prefetch_at_least:
            return None
        if self.asked_tokens >= int(settings.prefetch_share * settings.host_tokens):
            return None
        self.asked_tokens += span
        prefetch = Prefetch(key.cut(0, start + span), start, anchor, self.tree.lock_host(anchor))
        self.running.append(prefetch)
        return prefetch

    def deadline_s(self, prefetch: Prefetch) -> float | None:
        """Seconds, from the first time that the request would have been run, after which it is cut; ``None``: never."""
        settings = self.settings
        match settings.prefetch_policy:
            case PrefetchPolicy.BEST_EFFORT:
                return 0.0
            case PrefetchPolicy.WAIT_COMPLETE:
                return None
            case PrefetchPolicy.TIMEOUT:
                ki_tokens = prefetch.span_tokens / 1024
                return settings.prefetch_timeout_base_s + ki_tokens * settings.prefetch_timeout_per_ki_token_s

    def answer(self, prefetch: Prefetch) -> int:
        """L3 says what it has; room in L2 is made and taken. Returns tokens to read; at 0 the prefetch has ended."""
        tree, settings = self.tree, self.settings
        if prefetch.start == prefetch.anchor.depth:
            prefetch.found_tokens = self.host.storage.find(
                prefetch.key, prefetch.anchor, prefetch.start, needs_state=settings.has_states
            )
        found = prefetch.found_tokens
        if tree.observer is not None:
            tree.observer.storage_found(prefetch.key, prefetch.start, found)
        if found < settings.prefetch_at_least:
            self._end(prefetch)
            return 0
        if tree.free_host_tokens < found:
            self.host.evict_tokens(found)
        tokens = min(found, tree.free_host_tokens)
        if tokens < settings.prefetch_at_least:
            self._end(prefetch)
            return 0
        tree.free_host_tokens -= tokens
        if settings.has_states and not self.host.take_state():
            tree.free_host_tokens += tokens
            self._end(prefetch)
            return 0
        prefetch.taken_tokens = tokens
        return tokens

    def finish(self, prefetch: Prefetch, read_tokens: int) -> int:
        """End it after ``read_tokens``. Returns how many L2 has gained; a model with states keeps all or nothing,
        since only the end of what was found has a state."""
        tree = self.tree
        taken = prefetch.taken_tokens
        keeps = self.settings.page_floor(min(read_tokens, taken))
        if self.settings.has_states and not (keeps == taken and self._has_state_at(prefetch, taken)):
            keeps = 0
        tree.free_host_tokens += taken - keeps
        if keeps == 0:
            tree.free_host_slots += int(self.settings.has_states and taken > 0)
            self._end(prefetch)
            return 0
        gained, node = self._insert(prefetch, keeps)
        tree.free_host_tokens += keeps - gained
        if self.settings.has_states:
            self._attach_state(node)
        if tree.observer is not None:
            has_state = self.settings.has_states
            tree.observer.storage_loaded(prefetch.key, prefetch.start, keeps, has_state=has_state)
        self._end(prefetch)
        return gained

    def release(self, prefetch: Prefetch) -> None:
        """Its request is gone: nothing to do, here the tree has what was read."""

    def is_lost(self, prefetch: Prefetch) -> bool:
        """Whether what was read is of no use any more: never, here the tree has it."""
        return False

    def _end(self, prefetch: Prefetch) -> None:
        self.tree.unlock(prefetch.lock)
        self.asked_tokens -= prefetch.span_tokens
        self.running.remove(prefetch)

    def _has_state_at(self, prefetch: Prefetch, tokens: int) -> bool:
        if tokens == prefetch.found_tokens:
            return True
        key = prefetch.key.cut(0, prefetch.start + tokens)
        return self.host.storage.find(key, prefetch.anchor, prefetch.start, needs_state=True) == tokens

    def _attach_state(self, node: Node | None) -> None:
        tree = self.tree
        if node is None or node.state_host:
            tree.free_host_slots += 1
            return
        node.state_host = True
        if not node.state_device and node not in tree.host_state_order:
            tree.host_state_order.add(node)
        if tree.observer is not None:
            tree.observer.state_stored(node, Tier.L2, StateCause.LOADED)

    def _insert(self, prefetch: Prefetch, tokens: int) -> tuple[int, Node | None]:
        """Hang what was read below the anchor; tokens of it that L2 did not have, and the node at its end."""
        tree = self.tree
        node = prefetch.anchor
        self._touch(node)
        key, at, end = prefetch.key, prefetch.start, prefetch.start + tokens
        gained = 0
        while at < end:
            child = node.children.get(key.page(at, tree.page))
            if child is None:
                break
            self._touch(child)
            same = tree.settings.page_floor(min(child.key.common(key, at), end - at))
            node = child if same == child.tokens else tree.split(child, same)
            at += same
            if not node.host and not tree.settings.is_write_back:
                node.host = True
                gained += same
                tree.update_leaf(node)
                tree.update_leaf(node.above)
                tree.update_duplicate(node)
                if tree.observer is not None:
                    tree.observer.kv_stored(node, Tier.L2)
        self.host.note_splits()
        if at == end:
            return gained, node if node.host else None
        if node.parent is not None and not node.host and not tree.settings.is_write_back:
            return gained, None
        parent = node
        node = tree.add_child(parent, key.cut(at, end), parent.priority)
        node.host = True
        tree.update_leaf(node)
        tree.update_leaf(parent)
        if tree.observer is not None:
            tree.observer.kv_stored(node, Tier.L2)
        return gained + end - at, node

    def _touch(self, node: Node) -> None:
        node.access = self.tree.tick()

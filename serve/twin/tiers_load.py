"""From L2 back to L1. Follows ``load_back`` of ``unified_radix_cache.py``."""

from __future__ import annotations

from serve.twin.tiers_device import DeviceTier
from serve.twin.tiers_model import OutOfSlots
from serve.twin.tiers_node import Node
from serve.twin.tiers_observer import StateCause
from serve.twin.tiers_tree import Lock, Tree


class Load:
    """A copy from L2 to L1 under way. The tokens are usable by the request it was started for at once."""

    __slots__ = ("host_lock", "lock", "node", "number", "states", "tokens")

    def __init__(self, node: Node, lock: Lock, host_lock: Lock, tokens: int, states: int) -> None:
        self.number = node.number
        self.node = node
        self.lock = lock
        self.host_lock = host_lock
        self.tokens = tokens
        self.states = states


class Loads:
    """All load-backs under way."""

    def __init__(self, tree: Tree, device: DeviceTier) -> None:
        self.tree = tree
        self.device = device
        self.running: dict[int, Load] = {}

    @property
    def held(self) -> tuple[int, int]:
        """Tokens and states that are L2's but not the tree's: none."""
        return 0, 0

    @property
    def spare_slots(self) -> int:
        """States of L1 that are nobody's until a copy is made: none."""
        return 0

    def start(self, node: Node, *, wants_slot: bool) -> Load | None:
        """Bring back all KV down to ``node`` and its state, or nothing. ``wants_slot``: the request has no state of its
        own yet and takes one, where the node's has to be loaded. ``None``: too little to be worth it, or no room.
        Raises :class:`OutOfSlots` for the request's own state."""
        tree, device = self.tree, self.device
        host_lock = tree.lock_host(node)
        lock = tree.lock(node)
        takes_slot = wants_slot and node.state_host and not node.state_device
        if takes_slot and not device.room_for_states(1):
            tree.unlock(lock)
            tree.unlock(host_lock)
            raise OutOfSlots("no state for the request that loads one")
        tree.free_slots -= int(takes_slot)
        nodes = self._to_load(node)
        tokens = sum(each.tokens for each in nodes)
        has_state = node.state_host and not node.state_device
        if not self._can_load(node, nodes, tokens, has_state=has_state):
            tree.unlock(lock)
            tree.unlock(host_lock)
            tree.free_slots += int(takes_slot)
            return None
        tree.free_tokens -= tokens
        tree.free_slots -= int(has_state)
        tree.unlock(lock)
        for each in nodes:
            if tree.settings.is_write_back:
                each.load = node.number
            tree.put_device(each)
        if has_state:
            tree.put_state(node, StateCause.RESTORED)
        tree.update_leaf(node)
        load = Load(node, tree.lock(node), host_lock, tokens, int(has_state))
        self.running[load.number] = load
        return load

    def finish(self, number: int) -> None:
        """The copy is made."""
        tree = self.tree
        load = self.running.pop(number)
        tree.unlock(load.lock)
        tree.unlock(load.host_lock)
        node = load.node
        while node.parent is not None:
            if not tree.settings.is_write_back:
                tree.update_duplicate(node)
            elif node.load == number:
                node.load = None
                tree.update_duplicate(node)
            node = node.parent

    def _to_load(self, node: Node) -> list[Node]:
        """From the root down."""
        nodes: list[Node] = []
        while node.parent is not None and not node.device:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def _can_load(self, node: Node, nodes: list[Node], tokens: int, *, has_state: bool) -> bool:
        """Make the room; nothing is taken."""
        if any(each.load not in (None, node.number) for each in (*nodes, *([node] if has_state else ()))):
            return False  # another load-back reads these copies
        if tokens < max(1, self.tree.settings.load_back_tokens) and not has_state:
            return False
        if not self.device.room_for(tokens):
            return False
        return not has_state or self.device.room_for_states(1)

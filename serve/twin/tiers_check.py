"""Counting again what the tree's books say. A test runs this after every step."""

from __future__ import annotations

from serve.twin.tiers_model import BrokenBooks
from serve.twin.tiers_node import Node
from serve.twin.tiers_tree import Tree


def check_tree(tree: Tree, *, request_tokens: int, request_slots: int, staged_tokens: int, staged_slots: int) -> None:
    """Each token and state is counted once, nothing is negative, what may be evicted is just what nobody holds. The
    arguments are what others hold of the pools. Raises :class:`BrokenBooks`."""
    settings = tree.settings
    nodes = list(tree.walk_nodes())
    for node in nodes:
        _check_node(tree, node)
    _equal("nodes", tree.nodes, len(nodes))
    device = sum(node.tokens for node in nodes if node.device)
    host = sum(node.tokens for node in nodes if node.host)
    states = sum(node.state_device for node in nodes)
    host_states = sum(node.state_host for node in nodes)
    _equal("L1 tokens", settings.page_floor(settings.device_tokens), tree.free_tokens + device + request_tokens)
    _equal("L1 states", settings.device_slots, tree.free_slots + states + request_slots)
    _equal("L2 tokens", settings.page_floor(settings.host_tokens), tree.free_host_tokens + host + staged_tokens)
    _equal("L2 states", settings.host_slots, tree.free_host_slots + host_states + staged_slots)
    for name, free in (
        ("L1 tokens", tree.free_tokens),
        ("L1 states", tree.free_slots),
        ("L2 tokens", tree.free_host_tokens),
        ("L2 states", tree.free_host_slots),
    ):
        _need(free >= 0, f"{name}: {free} are free")
    _equal("evictable tokens", tree.evictable_tokens, sum(n.tokens for n in nodes if n.device and n.locks == 0))
    _equal("evictable states", tree.evictable_slots, sum(n.state_device and n.state_locks == 0 for n in nodes))
    _equal("states in order", len(tree.state_order), states)
    only_host = [node for node in nodes if node.state_host and not node.state_device and node.state_host_locks == 0]
    for node in only_host:
        _need(node in tree.host_state_order, f"{node} is not in the order of L2's states")
    known = set(nodes)
    for leaves in (tree.device_leaves, tree.host_leaves):
        _need(leaves <= known, "a leaf is not in the tree")


def _check_node(tree: Tree, node: Node) -> None:
    parent = node.above
    _need(parent.children.get(node.key.page(0, tree.page)) is node, f"{node} is not its parent's child")
    _need(node.tokens == len(node.key) > 0 and node.tokens % tree.page == 0, f"{node} is not whole pages")
    _need(node.device or node.host or node.is_locked, f"{node} holds nothing")
    _need(not node.device or parent.device, f"{node} is in L1, its parent is not")
    _need(not node.state_device or node.device, f"{node} has a state in L1 without KV")
    _need(not node.state_host or node.host or tree.settings.is_write_back, f"{node} has a state in L2 without KV")
    if not tree.settings.is_write_back:
        _need(not node.host or parent.host or parent is tree.root, f"{node} is in L2, its parent is not")
    _need(min(node.locks, node.state_locks, node.host_locks, node.state_host_locks) >= 0, f"{node} has negative locks")
    below = sum(child.locks for child in node.children.values())
    _need(node.locks >= below, f"{node} is locked less than what is below")
    _equal(f"{node}'s children in L1", node.device_children, sum(child.device for child in node.children.values()))
    held = node.locks > 0 or node.state_locks > 0
    device_leaf = node.device and not held and node.device_children == 0
    host_held = node.host_locks > 0 or node.state_host_locks > 0
    host_leaf = node.host and not node.device and not held and not host_held and not node.children
    _equal(f"{node} is a leaf of L1", node in tree.device_leaves, device_leaf)
    _equal(f"{node} is a leaf of L2", node in tree.host_leaves, host_leaf)


def _equal(name: str, booked: object, counted: object) -> None:
    if booked != counted:
        raise BrokenBooks(f"{name}: {booked} booked, {counted} counted")


def _need(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenBooks(message)

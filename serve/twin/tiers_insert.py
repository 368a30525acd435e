"""Giving a request's KV and state to the tree. Follows the insert walk of ``unified_tree_core.py``."""

from __future__ import annotations

from serve.twin.tiers_host import HostTier
from serve.twin.tiers_key import Key
from serve.twin.tiers_node import Node
from serve.twin.tiers_observer import StateCause
from serve.twin.tiers_tree import Tree


class Inserted:
    """What became of an insert."""

    __slots__ = ("known_tokens", "node", "tokens_freed", "took_state")

    def __init__(self, node: Node) -> None:
        self.node = node
        """Where the key ends."""
        self.known_tokens = 0
        """Of the key's start that was in the tree already."""
        self.tokens_freed = 0
        """KV the request had computed though the tree had it: its copy is freed."""
        self.took_state = False
        """The tree keeps the state now; otherwise there was one already."""


def insert(
    tree: Tree,
    host: HostTier,
    key: Key,
    *,
    owned_from: int,
    counted_to: int = 0,
    priority: int = 0,
) -> Inserted:
    """Insert whole pages. ``owned_from``: before it the tree's own KV is in the key, from there on the request's;
    ``counted_to``: up to there this request has counted as a hit before. All the request's tokens of ``key`` are the
    tree's afterwards, or free. A model with states has one at the end of every key that is inserted."""
    node = tree.root
    node.access = tree.tick()
    node.priority = max(node.priority, priority)
    done = Inserted(node)
    at, length = 0, len(key)
    if length == 0:
        return done
    while at < length:
        child = node.children.get(key.page(at, tree.page))
        if child is None:
            break
        child.access = tree.tick()
        same = tree.settings.page_floor(min(child.key.common(key, at), length - at))
        node = child if same == child.tokens else tree.split(child, same)
        node.priority = max(node.priority, priority)
        if node.device:
            dup = at + same - max(owned_from, at)
            if dup > 0:
                tree.free_tokens += dup
                done.tokens_freed += dup
        else:
            tree.put_device(node)
            tree.update_duplicate(node)
        at += same
        if at > counted_to and _counts_to_write(tree, node):
            host.note_splits()
            host.back_up(host.chain_of(node))
    done.known_tokens = at
    is_new = at < length
    if is_new:
        node = tree.add_child(node, key.cut(at, length), priority)
        tree.put_device(node)
    done.node = node
    if tree.has_states:
        _attach_state(tree, node, done, is_new=is_new)
    if done.took_state:
        _thin_path(tree, node)
    host.note_splits()
    if _backs_up_after(tree, node, is_new=is_new, counts=length > counted_to):
        host.back_up(host.chain_of(node))
    return done


def _attach_state(tree: Tree, node: Node, done: Inserted, *, is_new: bool) -> None:
    if node.state_device:
        tree.state_order.touch(node)
    else:
        tree.put_state(node, StateCause.STORED)
        done.took_state = True
    if not is_new:
        node.access = tree.tick()


def _counts_to_write(tree: Tree, node: Node) -> bool:
    """Count a hit; whether it is the one that makes the node's copy in L2."""
    if not node.device or tree.settings.is_write_back:
        return False
    node.hits += 1
    return tree.has_host and not node.host and node.hits >= tree.settings.hits_to_write


def _backs_up_after(tree: Tree, node: Node, *, is_new: bool, counts: bool) -> bool:
    if tree.settings.is_write_back:
        return False
    if is_new:
        return counts and _counts_to_write(tree, node)
    return tree.has_host and node.host and node.write is None and node.state_device and not node.state_host


def _thin_path(tree: Tree, tail: Node) -> None:
    """Keep at most ``states_per_path`` states in L1 above and at ``tail``: the shallowest fall, forks and what is held
    excepted (``mamba.py:255-320``)."""
    limit = tree.settings.states_per_path
    if limit < 0:
        return
    holders: list[Node] = []
    node: Node | None = tail
    while node is not None and node.parent is not None:
        if node.state_device:
            holders.append(node)
        node = node.parent
    excess = len(holders) - limit
    for holder in reversed(holders):
        if excess <= 0 or holder is tail:
            return
        if holder.state_locks or len(holder.children) != 1 or holder in tree.device_leaves:
            continue
        tree.drop_state(holder)
        tree.update_leaf(holder)
        excess -= 1

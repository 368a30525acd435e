"""What the tiers tell somebody who wants to know each change: the ground truth of the twin's feeds and of tests.

Lowest but for nodes, so that every part of the model may name it. Without an observer a change costs one test.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from serve.twin.tiers_key import Key
from serve.twin.tiers_model import Tier
from serve.twin.tiers_node import Node, Stored


class StateCause(StrEnum):
    """Where a state has come from, as our plugin inside SGLang calls it (``docs/design/sglang-plugin.md``)."""

    STORED = "stored"
    """Computed, and given to the tree by a chunk's end or a request's."""
    BACKED_UP = "backed_up"
    RESTORED = "restored"
    LOADED = "loaded"


class TiersObserver(Protocol):
    """Told of each change right after it, in order, from within the operation. It must not touch the tiers.

    A copy in L2 is there when its transfer is made, not when it begins: SGLang tells of it then.
    """

    def kv_stored(self, node: Node, tier: Tier) -> None:
        """All of the node's KV is in L1 or L2. May be told again of L2, after a copy of its state alone."""
        ...

    def kv_removed(self, node: Node, tier: Tier) -> None: ...

    def state_stored(self, node: Node, tier: Tier, cause: StateCause) -> None:
        """The state at the node's end is in L1 or L2."""
        ...

    def state_removed(self, node: Node, tier: Tier) -> None: ...

    def node_split(self, upper: Node, lower: Node) -> None:
        """``lower`` has given its first tokens to the new ``upper``, and has kept its state. Nothing has moved."""
        ...

    def node_removed(self, node: Node) -> None:
        """It holds nothing any more, and has left the tree."""
        ...

    def cleared(self) -> None:
        """L1 and L2 are empty: at the start, and after each flush."""
        ...

    def prefilled(self) -> None:
        """A chunk of a prefill has given the tree what it can."""
        ...

    def matched(self, key: Key, *, kv_tokens: int, usable_tokens: int, device_tokens: int, host_tokens: int) -> None:
        """Somebody has looked for ``key``; see :class:`serve.twin.tiers_tree.Walk`."""
        ...

    def storage_found(self, key: Key, start: int, tokens: int) -> None:
        """L3 was asked for ``key`` from ``start`` on, and has ``tokens`` of it."""
        ...

    def storage_loaded(self, key: Key, start: int, tokens: int, *, has_state: bool) -> None:
        """Of these, so many are in L2 now, with the state at their end."""
        ...

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        """L3 has the node's pages and the state at its end, maybe since long."""
        ...

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        """Tokens ``[start, stop)`` of a span have fallen out of L3, and the state at its end."""
        ...


class Observers:
    """Several as one, told in order."""

    def __init__(self, *observers: TiersObserver) -> None:
        self._all = observers

    def kv_stored(self, node: Node, tier: Tier) -> None:
        for each in self._all:
            each.kv_stored(node, tier)

    def kv_removed(self, node: Node, tier: Tier) -> None:
        for each in self._all:
            each.kv_removed(node, tier)

    def state_stored(self, node: Node, tier: Tier, cause: StateCause) -> None:
        for each in self._all:
            each.state_stored(node, tier, cause)

    def state_removed(self, node: Node, tier: Tier) -> None:
        for each in self._all:
            each.state_removed(node, tier)

    def node_split(self, upper: Node, lower: Node) -> None:
        for each in self._all:
            each.node_split(upper, lower)

    def node_removed(self, node: Node) -> None:
        for each in self._all:
            each.node_removed(node)

    def cleared(self) -> None:
        for each in self._all:
            each.cleared()

    def prefilled(self) -> None:
        for each in self._all:
            each.prefilled()

    def matched(self, key: Key, *, kv_tokens: int, usable_tokens: int, device_tokens: int, host_tokens: int) -> None:
        for each in self._all:
            each.matched(
                key,
                kv_tokens=kv_tokens,
                usable_tokens=usable_tokens,
                device_tokens=device_tokens,
                host_tokens=host_tokens,
            )

    def storage_found(self, key: Key, start: int, tokens: int) -> None:
        for each in self._all:
            each.storage_found(key, start, tokens)

    def storage_loaded(self, key: Key, start: int, tokens: int, *, has_state: bool) -> None:
        for each in self._all:
            each.storage_loaded(key, start, tokens, has_state=has_state)

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        for each in self._all:
            each.storage_written(node, has_state=has_state)

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        for each in self._all:
            each.storage_dropped(span, start, stop, has_state=has_state)

"""What has moved between the tiers since the start, counted as ``/metrics`` tells it."""

from __future__ import annotations

from serve.twin.tiers_key import Key
from serve.twin.tiers_model import Tier
from serve.twin.tiers_node import Node, Stored
from serve.twin.tiers_observer import StateCause


class TierCounters:
    """See :class:`serve.twin.tiers_observer.TiersObserver`. Only ever rising."""

    def __init__(self) -> None:
        self.evicted_tokens = 0
        self.backed_up_tokens = 0
        self.backed_up_states = 0
        self.loaded_states = 0
        self.stored_tokens = 0
        self.found_tokens = 0
        self.prefetched_tokens = 0
        self._in_host: set[int] = set()
        """Numbers of nodes: a copy is told of again when only the state has followed."""

    def kv_stored(self, node: Node, tier: Tier) -> None:
        if tier is not Tier.L2 or node.number in self._in_host:
            return
        self._in_host.add(node.number)
        if node.device:  # else it came from L3
            self.backed_up_tokens += node.tokens

    def kv_removed(self, node: Node, tier: Tier) -> None:
        if tier is Tier.L1:
            self.evicted_tokens += node.tokens
        else:
            self._in_host.discard(node.number)

    def state_stored(self, node: Node, tier: Tier, cause: StateCause) -> None:
        if cause is StateCause.BACKED_UP:
            self.backed_up_states += 1
        elif cause is StateCause.RESTORED:
            self.loaded_states += 1

    def state_removed(self, node: Node, tier: Tier) -> None:
        pass

    def node_split(self, upper: Node, lower: Node) -> None:
        if lower.number in self._in_host:
            self._in_host.add(upper.number)

    def node_removed(self, node: Node) -> None:
        self._in_host.discard(node.number)

    def cleared(self) -> None:
        self._in_host.clear()

    def prefilled(self) -> None:
        pass

    def matched(self, key: Key, *, kv_tokens: int, usable_tokens: int, device_tokens: int, host_tokens: int) -> None:
        pass

    def storage_found(self, key: Key, start: int, tokens: int) -> None:
        self.found_tokens += tokens

    def storage_loaded(self, key: Key, start: int, tokens: int, *, has_state: bool) -> None:
        self.prefetched_tokens += tokens

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        self.stored_tokens += node.tokens

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        pass

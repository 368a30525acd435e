"""What one running request holds of L1, and which position of its context a state is known for. No behaviour."""

from __future__ import annotations

from serve.twin.tiers_key import Key
from serve.twin.tiers_node import Node
from serve.twin.tiers_tree import Lock


class Request:
    """Made by :meth:`serve.twin.tiers.Tiers.admit`; of no use after it was finished, aborted or retracted."""

    __slots__ = (
        "branch",
        "computed_tokens",
        "counted_tokens",
        "device_hit_tokens",
        "host_hit_tokens",
        "key",
        "lock",
        "node",
        "previous_state_at",
        "priority",
        "prompt_tokens",
        "protected_tokens",
        "slots",
        "state_at",
    )

    def __init__(self, key: Key, priority: int, node: Node) -> None:
        self.key = key
        self.priority = priority
        self.node = node
        self.prompt_tokens = len(key)
        self.lock: Lock | None = None
        self.slots = 0
        """States it works in."""
        self.device_hit_tokens = 0
        self.host_hit_tokens = 0
        self.computed_tokens = 0
        """Of ``key``, whose KV is in L1: hits, prefilled and decoded ones."""
        self.protected_tokens = 0
        """Of these, the first that are the tree's."""
        self.counted_tokens = 0
        """Up to here it has inserted, and counts as a hit no more."""
        self.branch: int | None = None
        """Where KV goes on though no state does: a prefill that passes it keeps its state there."""
        self.state_at: int | None = None
        """Position of its newest snapshot."""
        self.previous_state_at: int | None = None
        """Position of the one before, while both are kept."""

    @property
    def left_tokens(self) -> int:
        """Of the context, still to be prefilled."""
        return len(self.key) - self.computed_tokens

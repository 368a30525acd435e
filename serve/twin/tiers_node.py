"""The nodes of the two radix trees, L1 and L2's and L3's, and the order in which states were last used."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from serve.twin.tiers_key import Key
from serve.twin.tiers_model import BrokenBooks


class Stored:
    """Consecutive pages of one chain. ``missing`` counts those that have fallen from its front."""

    __slots__ = ("children", "has_state", "key", "missing", "parent", "tokens")

    def __init__(self, key: Key, parent: Stored | None = None) -> None:
        self.key = key
        self.parent = parent
        self.tokens = len(key)
        self.missing = len(key)
        """Tokens; all of them in a span that was only walked through."""
        self.has_state = False
        """At the end of the span."""
        self.children: dict[Hashable, Stored] = {}

    @property
    def path(self) -> Key:
        """From the context's first token to the span's last."""
        return _path(self)


class Believed:
    """Consecutive pages of one chain that L3 is believed to have or not, all alike. It stays the end of what it is the
    end of: a split gives the first tokens to a new one above."""

    __slots__ = ("children", "in_flight", "key", "parent", "states_in_flight", "stored", "stored_state", "tokens")

    def __init__(self, key: Key, parent: Believed | None) -> None:
        self.key = key
        self.tokens = len(key)
        self.parent = parent
        self.children: dict[Hashable, Believed] = {}
        self.stored = False
        self.in_flight = 0
        """Writes under way that carry these pages."""
        self.stored_state = False
        """The state at the end."""
        self.states_in_flight = 0


class Node:
    """A span of tokens below its parent, and where its KV and the state at its end are.

    KV is in L1, L2, both or (never for long) neither, and always whole. All of a path's KV in L1 lies above what is
    not. ``locks`` counts a running request on the whole path up to the root, ``state_locks`` only at its node.
    """

    __slots__ = (
        "access",
        "believed",
        "children",
        "created",
        "device",
        "device_children",
        "hits",
        "host",
        "host_locks",
        "host_token",
        "key",
        "load",
        "locks",
        "number",
        "parent",
        "priority",
        "state_device",
        "state_host",
        "state_host_locks",
        "state_locks",
        "stored",
        "tokens",
        "write",
    )

    def __init__(self, number: int, parent: Node | None, key: Key, priority: int, access: float) -> None:
        self.number = number
        self.parent = parent
        self.key = key
        self.tokens = len(key)
        self.children: dict[Hashable, Node] = {}
        self.device_children = 0
        self.priority = priority
        self.access = access
        self.created = access
        self.hits = 0
        self.device = False
        self.host = False
        self.state_device = False
        self.state_host = False
        self.locks = 0
        self.state_locks = 0
        self.host_locks = 0
        self.state_host_locks = 0
        self.host_token: int | None = None
        """Marks the upper end of a host lock, which grows upward when its node is split."""
        self.stored: Stored | None = None
        """The span of L3 that ends where this node ends."""
        self.believed: Believed | None = None
        """The same of what the engine believes L3 to have (``buffer_only``)."""
        self.write: int | None = None
        """Number of the backup under way that this node belongs to."""
        self.load: int | None = None
        """Number of the load-back under way that reads this node's host copy (write_back only)."""

    def __repr__(self) -> str:
        where = "".join(name for name, on in zip("DHdh", self._places(), strict=True) if on)
        return f"<{self.number} {self.tokens} {where or '-'} locks={self.locks}>"

    def __lt__(self, other: Node) -> bool:
        return self.number < other.number

    @property
    def above(self) -> Node:
        """Its parent. Raises :class:`BrokenBooks` for the root."""
        if self.parent is None:
            raise BrokenBooks("the root has no parent")
        return self.parent

    @property
    def depth(self) -> int:
        """Tokens from the root to this node's end."""
        tokens, node = 0, self
        while node.parent is not None:
            tokens += node.tokens
            node = node.parent
        return tokens

    @property
    def path(self) -> Key:
        """From the context's first token to the node's last."""
        return _path(self)

    @property
    def is_locked(self) -> bool:
        return self.locks > 0 or self.state_locks > 0 or self.host_locks > 0 or self.state_host_locks > 0

    def _places(self) -> tuple[bool, bool, bool, bool]:
        return self.device, self.host, self.state_device, self.state_host


def _path(end: Node | Stored) -> Key:
    parts: list[Key] = []
    at: Node | Stored | None = end
    while at is not None:
        parts.append(at.key)
        at = at.parent
    return Key(run for part in reversed(parts) for run in part.runs)


class _Place:
    __slots__ = ("newer", "node", "older")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.older: _Place | None = None
        self.newer: _Place | None = None


class UseOrder:
    """Nodes with a state on one tier, from least to most recently used."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._oldest: _Place | None = None
        self._newest: _Place | None = None

    def __contains__(self, node: Node) -> bool:
        return node.number in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Node]:
        """From the oldest. Whoever changes the order meanwhile starts again."""
        place = self._oldest
        while place is not None:
            yield place.node
            place = place.newer

    def add(self, node: Node) -> None:
        """As the most recently used. It must not be in yet."""
        place = self._places[node.number] = _Place(node)
        place.older = self._newest
        if self._newest is None:
            self._oldest = place
        else:
            self._newest.newer = place
        self._newest = place

    def discard(self, node: Node) -> None:
        place = self._places.pop(node.number, None)
        if place is None:
            return
        if place.older is None:
            self._oldest = place.newer
        else:
            place.older.newer = place.newer
        if place.newer is None:
            self._newest = place.older
        else:
            place.newer.older = place.older

    def touch(self, node: Node) -> None:
        self.discard(node)
        self.add(node)

    def after(self, node: Node | None) -> Iterator[Node]:
        """What was used more recently than ``node``, oldest first; ``None``: all."""
        place = self._oldest if node is None else self._places[node.number].newer
        while place is not None:
            yield place.node
            place = place.newer

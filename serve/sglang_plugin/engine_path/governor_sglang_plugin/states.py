"""Which Mamba states there are, in which tier. SGLang drops them in several places without naming them, so after a
drop every known one is asked for; that costs less than a microsecond each.

A state is named by the hash of the last page before it, as L3 names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

DEVICE = "d"
HOST = "h"


class Tree(Protocol):
    """What is asked of SGLang's tree core."""

    def get_component_device_value(self, node_id: int, component_type: Any) -> Any: ...

    def component_has_host_value_only(self, node_id: int, component_type: Any) -> bool: ...

    def get_last_hash_value(self, node_id: int) -> Any: ...


class _State:
    __slots__ = ("device", "hash", "host", "tokens")

    def __init__(self, name: str, tokens: int) -> None:
        self.hash = name
        self.tokens = tokens
        self.device = False
        self.host = False

    @property
    def tiers(self) -> str:
        return DEVICE * self.device + HOST * self.host


class States:
    """Of one tree. For the scheduler's thread only. ``tell(change, tier, hash, tokens, tiers)``; ``tiers`` are those
    it is in afterwards, a letter each."""

    def __init__(self, tree: Tree, component: Any, tell: Callable[[str, str, str, int, str], None]) -> None:
        self._tree = tree
        self._component = component
        self._tell = tell
        self._by_node: dict[int, _State] = {}
        self.is_stale = False
        """Something was dropped since the last look."""

    def known(self) -> list[list[Any]]:
        """``[hash, tokens, tiers]`` of each."""
        return [[state.hash, state.tokens, state.tiers] for state in self._by_node.values()]

    def on_device(self, node_id: int, tokens: int, change: str) -> None:
        """The engine has put a state there (``stored``) or brought it back (``restored``)."""
        state = self._state(node_id, tokens)
        if state is not None and not state.device:
            state.device = True
            self._say(change, DEVICE, state)

    def on_host(self, node_id: int, tokens: int, change: str) -> None:
        """``backed_up`` from the device or ``loaded`` from L3."""
        state = self._state(node_id, tokens)
        if state is not None and not state.host:
            state.host = True
            self._say(change, HOST, state)

    def tokens_at(self, node_id: int) -> int:
        """Of a known state; 0 otherwise."""
        state = self._by_node.get(node_id)
        return 0 if state is None else state.tokens

    def look(self) -> None:
        """Find what was dropped. A host copy that goes while the device has one, too, is noticed when that one goes."""
        if not self.is_stale:
            return
        self.is_stale = False
        for node_id, state in list(self._by_node.items()):
            on_device, only_host = self._where(node_id)
            gone_device = state.device and not on_device
            gone_host = state.host and not on_device and not only_host
            state.device = state.device and on_device
            state.host = (state.host and not gone_host) or only_host
            if not state.device and not state.host:
                del self._by_node[node_id]
            if gone_host:
                self._say("evicted", HOST, state)
            if gone_device:
                self._say("evicted", DEVICE, state)

    def clear(self) -> None:
        """The engine has forgotten everything. The listener is told of it in one message of its own."""
        self._by_node.clear()
        self.is_stale = False

    def _state(self, node_id: int, tokens: int) -> _State | None:
        state = self._by_node.get(node_id)
        if state is None and tokens > 0:
            name = self._tree.get_last_hash_value(node_id)
            if isinstance(name, str):
                state = self._by_node[node_id] = _State(name, tokens)
        return state

    def _where(self, node_id: int) -> tuple[bool, bool]:
        try:
            on_device = self._tree.get_component_device_value(node_id, self._component) is not None
            return on_device, not on_device and self._tree.component_has_host_value_only(node_id, self._component)
        except (KeyError, AttributeError):  # the node is gone
            return False, False

    def _say(self, change: str, tier: str, state: _State) -> None:
        self._tell(change, tier, state.hash, state.tokens, state.tiers)

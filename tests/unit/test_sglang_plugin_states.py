"""The plugin's ledger of Mamba states, on a tree that answers as SGLang's does."""

from __future__ import annotations

from serve.sglang_plugin.engine_path.governor_sglang_plugin.states import States

MAMBA = 2
Told = tuple[str, str, str, int, str]


class Tree:
    """Where states are; a node that is in neither map does not exist."""

    def __init__(self) -> None:
        self.device: dict[int, bool] = {}
        self.host: dict[int, bool] = {}
        self.asked = 0

    def put(self, node: int, *, device: bool = False, host: bool = False) -> None:
        self.device[node], self.host[node] = device, host

    def delete(self, node: int) -> None:
        del self.device[node], self.host[node]

    def get_component_device_value(self, node_id: int, component_type: int) -> object | None:
        assert component_type == MAMBA
        self.asked += 1
        return object() if self.device[node_id] else None

    def component_has_host_value_only(self, node_id: int, component_type: int) -> bool:
        return self.host[node_id] and not self.device[node_id]

    def get_last_hash_value(self, node_id: int) -> str:
        return f"page-{node_id}"


def ledger() -> tuple[Tree, States, list[Told]]:
    tree, told = Tree(), list[Told]()
    return tree, States(tree, MAMBA, lambda *message: told.append(message)), told


def test_a_state_goes_down_the_tiers_and_comes_back() -> None:
    tree, states, told = ledger()
    tree.put(1, device=True)
    states.on_device(1, 640, "stored")
    tree.put(1, device=True, host=True)
    states.on_host(1, 640, "backed_up")
    tree.put(1, host=True)
    states.is_stale = True
    states.look()
    tree.put(1, device=True, host=True)
    states.on_device(1, 640, "restored")
    assert told == [
        ("stored", "d", "page-1", 640, "d"),
        ("backed_up", "h", "page-1", 640, "dh"),
        ("evicted", "d", "page-1", 640, "h"),
        ("restored", "d", "page-1", 640, "dh"),
    ]
    assert states.known() == [["page-1", 640, "dh"]]


def test_a_node_that_is_gone_has_lost_its_state_in_every_tier() -> None:
    tree, states, told = ledger()
    tree.put(1, device=True, host=True)
    states.on_device(1, 64, "stored")
    states.on_host(1, 64, "backed_up")
    tree.delete(1)
    states.is_stale = True
    states.look()
    assert told[2:] == [("evicted", "h", "page-1", 64, ""), ("evicted", "d", "page-1", 64, "")]
    assert states.known() == []


def test_only_those_that_went_are_told() -> None:
    tree, states, told = ledger()
    for node in range(1, 5):
        tree.put(node, device=True)
        states.on_device(node, 64 * node, "stored")
    told.clear()
    tree.put(3)
    states.is_stale = True
    states.look()
    assert told == [("evicted", "d", "page-3", 192, "")]
    assert len(states.known()) == 3


def test_a_host_copy_that_went_first_is_noticed_with_the_device_copy() -> None:
    tree, states, told = ledger()
    tree.put(1, device=True, host=True)
    states.on_device(1, 64, "stored")
    states.on_host(1, 64, "backed_up")
    tree.put(1, device=True)
    states.is_stale = True
    states.look()
    assert len(told) == 2
    tree.put(1)
    states.is_stale = True
    states.look()
    assert told[2:] == [("evicted", "h", "page-1", 64, ""), ("evicted", "d", "page-1", 64, "")]


def test_nothing_is_asked_while_nothing_was_dropped() -> None:
    tree, states, _ = ledger()
    tree.put(1, device=True)
    states.on_device(1, 64, "stored")
    states.look()
    assert tree.asked == 0


def test_the_same_state_is_told_once() -> None:
    tree, states, told = ledger()
    tree.put(1, device=True)
    states.on_device(1, 64, "stored")
    states.on_device(1, 64, "stored")
    assert len(told) == 1


def test_after_a_reset_nothing_is_known() -> None:
    tree, states, told = ledger()
    tree.put(1, device=True)
    states.on_device(1, 64, "stored")
    states.clear()
    tree.delete(1)
    states.is_stale = True
    states.look()
    assert len(told) == 1
    assert states.known() == []

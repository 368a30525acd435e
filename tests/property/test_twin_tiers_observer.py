"""Whatever is done to the tiers, who was told of each change knows what is where."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from serve.twin.tiers import Tiers
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import Tier
from serve.twin.tiers_node import Node, Stored
from serve.twin.tiers_observer import StateCause
from tests.property.test_twin_tiers import STEPS, cases, tier_settings
from tests.twin.cases import Case
from tests.twin.play import Play, Twin

Places = dict[int, set[Tier]]


class Ledger:
    """What a listener would hold to be there."""

    def __init__(self) -> None:
        self.kv: Places = {}
        self.states: Places = {}
        self.pages: set[Key] = set()
        """Of L3; a page is the context that ends with it."""
        self.stored_states: set[Key] = set()
        self.page_tokens = 0
        self.chunks = 0

    def kv_stored(self, node: Node, tier: Tier) -> None:
        self.kv.setdefault(node.number, set()).add(tier)

    def kv_removed(self, node: Node, tier: Tier) -> None:
        self.kv[node.number].remove(tier)

    def state_stored(self, node: Node, tier: Tier, cause: StateCause) -> None:
        places = self.states.setdefault(node.number, set())
        assert tier not in places
        assert (tier is Tier.L1) == (cause in {StateCause.STORED, StateCause.RESTORED})
        if cause in {StateCause.RESTORED, StateCause.BACKED_UP}:
            assert places
        places.add(tier)

    def state_removed(self, node: Node, tier: Tier) -> None:
        self.states[node.number].remove(tier)

    def node_split(self, upper: Node, lower: Node) -> None:
        self.kv[upper.number] = set(self.kv.get(lower.number, ()))

    def node_removed(self, node: Node) -> None:
        assert not self.kv.pop(node.number, None)
        assert not self.states.pop(node.number, None)

    def cleared(self) -> None:
        self.kv.clear()
        self.states.clear()

    def prefilled(self) -> None:
        self.chunks += 1

    def matched(self, key: Key, *, kv_tokens: int, usable_tokens: int, device_tokens: int, host_tokens: int) -> None:
        assert device_tokens <= usable_tokens <= kv_tokens <= len(key)
        assert device_tokens + host_tokens <= kv_tokens

    def storage_found(self, key: Key, start: int, tokens: int) -> None:
        assert self._pages(key, start, start + tokens) <= self.pages

    def storage_loaded(self, key: Key, start: int, tokens: int, *, has_state: bool) -> None:
        assert start + tokens <= len(key)
        assert not has_state or key.cut(0, start + tokens) in self.stored_states

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        path = node.path
        self.pages |= self._pages(path, len(path) - node.tokens, len(path))
        if has_state:
            self.stored_states.add(path)

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        path = span.path
        begin = len(path) - span.tokens
        fallen = self._pages(path, begin + start, begin + stop)
        assert fallen <= self.pages
        self.pages -= fallen
        if has_state:
            self.stored_states.remove(path)

    def _pages(self, path: Key, start: int, stop: int) -> set[Key]:
        ends = range(start + self.page_tokens, stop + 1, self.page_tokens)
        return {path.cut(0, end) for end in ends}


def held(places: Places) -> Places:
    return {number: tiers for number, tiers in places.items() if tiers}


def where_all_is(tiers: Tiers) -> tuple[Places, Places]:
    """KV and states. What is on its way to L2 is not there yet."""
    kv_coming = {node.number for write in tiers.host.writes.values() if write.tokens for node in write.nodes}
    state_coming = {write.nodes[-1].number for write in tiers.host.writes.values() if write.states}
    kv: Places = {}
    states: Places = {}
    for node in tiers.tree.walk_nodes():
        number = node.number
        host, state_host = node.host and number not in kv_coming, node.state_host and number not in state_coming
        kv[number] = {tier for tier, there in ((Tier.L1, node.device), (Tier.L2, host)) if there}
        states[number] = {tier for tier, there in ((Tier.L1, node.state_device), (Tier.L2, state_host)) if there}
    return held(kv), held(states)


def stored(tiers: Tiers) -> tuple[set[Key], set[Key]]:
    page = tiers.settings.page_tokens
    pages: set[Key] = set()
    states: set[Key] = set()
    for span in tiers.storage.walk_spans():
        path = span.path
        begin = len(path) - span.tokens
        pages |= {path.cut(0, end) for end in range(begin + span.missing + page, len(path) + 1, page)}
        states |= {path} if span.has_state else set()
    return pages, states


@given(case=cases(), storage_tokens=st.sampled_from((None, 1024, 4096)), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_who_listens_knows_what_is_where(case: Case, storage_tokens: int | None, seed: int) -> None:
    ledger = Ledger()
    twin = Twin(tier_settings(case, storage_tokens), ledger)
    ledger.page_tokens = twin.tiers.settings.page_tokens
    operations = Play(case, twin, Random(seed)).operations()  # noqa: S311 - a game, not a secret
    chunks = 0
    for _ in range(STEPS):
        name, *arguments = next(operations)
        answer = twin.do([name, *arguments])
        chunks += name == "checkpoint" and "error" not in answer
        assert (held(ledger.kv), held(ledger.states)) == where_all_is(twin.tiers), (name, arguments)
        assert ledger.chunks == chunks
    assert (ledger.pages, ledger.stored_states) == stored(twin.tiers)


@given(case=cases(), seed=st.integers(0, 2**16))
@settings(max_examples=15, deadline=None)
def test_a_listener_changes_nothing(case: Case, seed: int) -> None:
    silent, heard = Twin(tier_settings(case, 4096)), Twin(tier_settings(case, 4096), Ledger())
    heard_ledger = heard.tiers.observer
    assert isinstance(heard_ledger, Ledger)
    heard_ledger.page_tokens = heard.tiers.settings.page_tokens
    operations = Play(case, silent, Random(seed)).operations()  # noqa: S311 - a game, not a secret
    for _ in range(STEPS):
        operation = next(operations)
        assert silent.do(operation) == heard.do(operation)

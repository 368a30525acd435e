"""What a prompt is predicted to find is what the twin gives it, whatever was said, pushed out and flushed before."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from governor.residency.blocks import Blocks, Tier
from governor.residency.index import ContextKey, Limits, ResidencyIndex
from governor.residency.ledger import TierLedger
from governor.residency.names import page_numbers
from governor.residency.predict import Rules, predict
from serve.sglang_feed.events import short_hash
from serve.twin.engine_model import Admitted, Ask, EngineEvent
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import Tier as TwinTier
from serve.twin.tiers_model import TierSettings
from serve.twin.tiers_node import Node, Stored
from serve.twin.tiers_observer import StateCause
from serve.twin_server.content import Content
from serve.twin_server.feeds import Feeds
from tests.twin.talk import Talk, tier_settings

PAGE = 64
_TIERS = {TwinTier.L1: Tier.L1, TwinTier.L2: Tier.L2}


class Told(Feeds):
    """Tells the residency index of the tiers at once, and holds each admission against what it said before."""

    def __init__(self, tiers: TierSettings, content: Content) -> None:
        super().__init__(tiers, content, "twin")
        self._words = content
        self.rules = Rules(l3_least_tokens=tiers.prefetch_at_least)
        self.index, self.ledger = ResidencyIndex(Limits(look_again_s=0)), TierLedger()
        self.blocks = Blocks((self.index, self.ledger))
        self.index.attach(self.blocks)
        self.blocks.on_reset()
        self.blocks.on_cleared()
        self.blocks.on_model(page_tokens=PAGE, has_states=tiers.has_states)
        self.blocks.on_states(())
        self.blocks.on_l3_cleared()
        self._states: dict[int, set[Tier]] = {}
        self.talk: Talk
        self.said: tuple[int | None, ...] = ()
        self.turns = 0
        self.without_room = 0
        self.served = [0, 0, 0]

    # A turn

    def on_ask(self, ask: Ask) -> None:
        self.talk.tiers.settle()
        ids = [token for run in ask.prompt.runs for token in self._tokens(run)]
        pages = page_numbers(ids[:-1], PAGE)
        found = predict(self.blocks.places(pages), len(ids), self.blocks.knowledge, self.rules)
        self.said = (found.l1_tokens, found.l2_tokens, found.l3_tokens)
        parts = (*self.said, found.unusable_tokens, found.missing_tokens, found.unknown_tokens)
        assert sum(part or 0 for part in parts) == len(ids)
        agent = f"agent{self.turns % 3}"
        self.index.on_answered(ContextKey(agent, f"{agent}/{self.turns % 5}"), "s", pages, len(ids), 0.0)

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, Admitted):
                served = (event.cached.device, event.cached.host, event.cached.storage)
                if served != self.said:  # L2 had no room for what L3 has, or made it of what was to be served
                    lower = sum(part or 0 for part in self.said[1:])
                    assert lower > sum(served[1:]), f"said {self.said}, served {served}"
                    self.without_room += 1
                self.turns += 1
                self.served = [was + now for was, now in zip(self.served, served, strict=True)]

    def _tokens(self, run: tuple[int, int, int]) -> Sequence[int]:
        """Of a whole page or of a context's end, which is of nobody's source; its tokens decide nothing."""
        number, start, stop = run
        known = self._words.tokens(run) if number in self._words._sources else ()
        return known or [0] * (stop - start)

    # The tiers

    def kv_stored(self, node: Node, tier: TwinTier) -> None:
        self.blocks.on_stored(_TIERS[tier], self._names(node.key), PAGE)

    def kv_removed(self, node: Node, tier: TwinTier) -> None:
        self.blocks.on_removed(_TIERS[tier], self._names(node.key))

    def state_stored(self, node: Node, tier: TwinTier, cause: StateCause) -> None:
        self._states.setdefault(node.number, set()).add(_TIERS[tier])
        self.blocks.on_state(self._names(node.key)[-1], self._states[node.number])

    def state_removed(self, node: Node, tier: TwinTier) -> None:
        self._states[node.number].discard(_TIERS[tier])
        self.blocks.on_state(self._names(node.key)[-1], self._states[node.number])

    def cleared(self) -> None:
        self._states.clear()
        self.blocks.on_cleared()
        self.blocks.on_states(())

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        pages = self._names(node.key)
        self.blocks.on_l3_written(pages, pages[-1:] if has_state else ())

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        for page in self._names(span.key.cut(start, stop)):
            self.blocks.on_l3_evicted(page, is_state=False)
        if has_state:
            self.blocks.on_l3_evicted(self._names(span.key)[-1], is_state=True)

    def _names(self, key: Key) -> list[int]:
        return [short_hash(name) for run in key.runs for name in self._words.storage_names(run)]


@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 1 << 16),
    slots=st.sampled_from([0, 12, 24]),
    storage_tokens=st.sampled_from([0, 4096, None]),
    turns=st.lists(st.integers(1, 15), min_size=1, max_size=4),
)
@example(seed=44, slots=12, storage_tokens=4096, turns=[6, 6])  # a read of L3 made its room of what L2 had
def test_what_is_predicted_is_served(seed: int, slots: int, storage_tokens: int | None, turns: list[int]) -> None:
    tiers = tier_settings(slots=slots, storage_tokens=storage_tokens)
    content = Content(PAGE)
    told = Told(tiers, content)
    told.talk = talk = Talk(tiers, content, told, seed)
    for count in turns:
        for _ in talk.turns(count):
            told.index.check_integrity()
        talk.flush()
    assert told.turns == sum(turns)


def test_each_tier_serves_in_some_run() -> None:
    served, turns, without_room = [0, 0, 0], 0, 0
    for seed in range(3):
        tiers = tier_settings()
        content = Content(PAGE)
        told = Told(tiers, content)
        told.talk = talk = Talk(tiers, content, told, seed)
        for _ in range(3):
            list(talk.turns(40))
            talk.flush()
        served = [was + now for was, now in zip(served, told.served, strict=True)]
        turns, without_room = turns + told.turns, without_room + told.without_room
    assert all(served)
    assert without_room < 0.02 * turns

"""Where agents' contexts are in the engine's cache, kept up while turns run: what the engine tells, what turns were
served, and the picture of both for the owner. What follows from it is decided in :mod:`governor.residency`.

Turns call :meth:`Residency.on_granted` and :meth:`Followed.on_ended`, which only take notes; a task works them off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from governor.canary_note import CanaryReader
from governor.clock import Clock
from governor.errors import UpstreamError
from governor.gateway.claims import context_name
from governor.residency.blocks import Blocks, Mark, Tier
from governor.residency.index import SHARED, ContextKey, Limits, ResidencyIndex, Standing
from governor.residency.ledger import Sizes, TierFigures, TierLedger, Totals
from governor.residency.loss import Found
from governor.residency.names import PageNames, shared_pages
from governor.residency.predict import Prediction, Rules
from governor.residency.score import Figures, Score, predicted_at
from governor.snapshot import CacheView, HolderView, PredictionView, ResidencyView, TierView
from governor.tokens.chain import Located
from governor.types import AgentName, Usage
from serve.engine import TokenIds

log = logging.getLogger(__name__)

NOT_TOLD = "the engine tells nothing of its cache"
_NO_IDS = "the engine did not tell the tokens of its last turn"
_OTHER_NAMES = "the engine's pages have other names than these tokens"
"""``cache_salt`` or ``extra_key`` in a request, an adapter, pages of token pairs (speculation)."""
_SLICE_TOKENS = 8_192
"""Named at once; a millisecond."""
_ASK_AGAIN_S = 30.0
"""For what an engine tells only after its tiers were used."""


class CacheFeed(Protocol):
    """An engine that tells of its cache."""

    async def run(self, blocks: Blocks) -> None:
        """Tell, until cancelled. Connects again by itself; raises nothing for what the engine does."""
        ...

    async def learn(self, blocks: Blocks) -> dict[Tier, Totals]:
        """Ask an engine that is ready what its tiers can hold. Raises :class:`~governor.errors.UpstreamError`."""
        ...

    async def sizes(self, page_tokens: int) -> Sizes | None:
        """What a token and a state take, where that can be measured by now."""
        ...

    def relist(self) -> None:
        """Somebody else has changed what is in L3."""
        ...


class Followed:
    """One turn, from its grant to its end."""

    def __init__(
        self, residency: Residency, key: ContextKey, session: str, mark: Mark, parent: ContextKey | None = None
    ) -> None:
        """``parent``: the context that it broke off from."""
        self._residency = residency
        self.key = key
        self.parent = parent
        self.session = session
        self.mark = mark
        self.prompt_tokens = 0
        """Of the first generation."""
        self.ids: tuple[int, ...] | None = None
        self.usage = Usage()
        self.has_ended_well = False
        self.ended_at = 0.0
        self.found: Found | None = None
        """Once it is worked off; ``None``: nobody knows."""
        self.on_settled: Callable[[Followed], None] | None = None
        """Called then."""

    def on_ids(self, ids: TokenIds) -> None:
        """Of each of its generations; a later one's prompt is the first one's and what was kept of it."""
        if self.ids is None:
            self.prompt_tokens = len(ids.prompt)
        self.ids = (*ids.prompt, *ids.output)

    def on_ended(self, usage: Usage, *, well: bool) -> None:
        """Once, whatever became of it. Takes a note."""
        self.usage, self.has_ended_well = usage, well
        self._residency.on_ended(self)


class Residency:
    """One per governor; :meth:`run` until cancelled. ``feed``: ``None`` where the engine tells nothing."""

    def __init__(
        self,
        feed: CacheFeed | None,
        clock: Clock,
        set_alert: Callable[[str, str], None],
        *,
        canary: CanaryReader = lambda: None,
        limits: Limits | None = None,
        rules: Rules | None = None,
        listen_again_s: float = 5.0,
    ) -> None:
        """``listen_again_s``: after a failure of the feed's own."""
        self._feed = feed
        self._listen_again_s = listen_again_s
        self._clock = clock
        self._set_alert = set_alert
        self._canary = canary
        self.index = ResidencyIndex(limits, rules)
        self.ledger = TierLedger()
        self.blocks = Blocks((self.index, self.ledger))
        self.index.attach(self.blocks)
        self.score = Score()
        self._ended: asyncio.Queue[Followed] = asyncio.Queue()
        self._working = 0
        self._ask_now = asyncio.Event()
        self._models: tuple[str, ...] = ()
        self._complaining: set[Tier] = set()
        self._asked_at = clock.monotonic()

    # What turns and the engine's watch tell

    def on_granted(self, agent: AgentName, located: Located) -> Followed:
        """A turn goes to the engine. What is known of the cache now is what it is predicted from."""
        key, parent = ContextKey(agent, context_name(agent, located)), None
        if located.parent is not None:
            parent = ContextKey(agent, context_name(agent, msgspec.structs.replace(located, path=located.parent)))
        return Followed(self, key, located.session_id, self.blocks.mark(), parent)

    def on_ended(self, turn: Followed) -> None:
        turn.ended_at = self._clock.wall()
        self._working += 1
        self._ended.put_nowait(turn)

    def on_engine_ready(self, models: Sequence[str]) -> None:
        """It may be another one; with another model the contexts' tokens are others."""
        if self._models and tuple(models) != self._models:
            self.index.clear()
        self._models = tuple(models)
        self._ask_now.set()

    def relist_l3(self) -> None:
        if self._feed is not None:
            self._feed.relist()

    # Work

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work())
            if self._feed is not None:
                tasks.create_task(self._listen(self._feed))
                tasks.create_task(self._learn(self._feed))

    async def _listen(self, feed: CacheFeed) -> None:
        """What is wrong with a feed ends what is known, and not the work on turns, which would pile up."""
        while True:
            try:
                await feed.run(self.blocks)
            except Exception:
                log.exception("what the engine tells of its cache could not be heard")
            self.blocks.on_kv_lost()
            self.blocks.on_states_lost()
            await asyncio.sleep(self._listen_again_s)

    async def settled(self) -> None:
        """Returns when all turns that have ended are worked off."""
        while self._working:  # noqa: ASYNC110 - for tests
            await asyncio.sleep(0.005)

    async def _work(self) -> None:
        while True:
            turn = await self._ended.get()
            try:
                await self._settle(turn)
                if turn.on_settled is not None:
                    turn.on_settled(turn)
            except Exception:
                log.exception("a turn's context could not be followed")
            finally:
                self.blocks.release(turn.mark)
                self._working -= 1

    async def _learn(self, feed: CacheFeed) -> None:
        while True:
            await self._ask_now.wait()
            self._ask_now.clear()
            self._asked_at = self._clock.monotonic()
            page_tokens = self.blocks.knowledge.page_tokens
            try:
                self.ledger.capacities = capacities = await feed.learn(self.blocks)
                self.index.rules = replace(self.index.rules, l3_behind_l2=capacities[Tier.L2].tokens != 0)
                if page_tokens is not None and not self.ledger.sizes.is_known:
                    self.ledger.sizes = await feed.sizes(page_tokens) or Sizes()
            except UpstreamError as error:
                log.info("what the engine's tiers hold is not known: %s", error.message)
            except Exception:
                log.exception("what the engine's tiers hold is not known")

    async def _settle(self, turn: Followed) -> None:
        usage = turn.usage
        page_tokens = self.blocks.knowledge.page_tokens
        self.ledger.on_served(usage)
        if turn.ids is None or page_tokens is None:
            if turn.has_ended_well:
                self._on_unfollowed(turn, NOT_TOLD if turn.ids is not None or self._feed is None else _NO_IDS)
            return
        names = PageNames(page_tokens)
        try:
            for start in range(0, len(turn.ids), _SLICE_TOKENS):
                names.extend(turn.ids[start : start + _SLICE_TOKENS])
                await asyncio.sleep(0)
        except OverflowError:  # stand-ins for pictures
            self._on_unfollowed(turn, _OTHER_NAMES)
            return
        predicted = predicted_at(turn.mark, self.blocks, names.pages, turn.prompt_tokens, self.index.rules)
        if usage.cached_tokens is not None or turn.has_ended_well:
            self.score.note(turn.key.agent, predicted, usage, page_tokens)
        turn.found = self._found(turn, names.pages, predicted, page_tokens)
        # Nothing of the last token is computed before another one follows it.
        pages = names.pages[: max(0, len(turn.ids) - 1) // page_tokens]
        if turn.has_ended_well:
            self.blocks.on_computed(pages)
        if turn.has_ended_well and self._has_other_names(pages, usage):
            tokens, why = len(turn.ids), _OTHER_NAMES
            self.index.on_unfollowed(turn.key, turn.session, tokens, turn.ended_at, why)
        else:
            self.index.on_answered(turn.key, turn.session, pages, len(turn.ids), turn.ended_at)
        self._complain(page_tokens)
        is_known = self.ledger.sizes.is_known and self.ledger.capacities[Tier.L2].tokens is not None
        if not is_known and self._clock.monotonic() - self._asked_at > _ASK_AGAIN_S:
            self._ask_now.set()

    def _found(
        self, turn: Followed, pages: Sequence[int], predicted: Prediction | None, page_tokens: int
    ) -> Found | None:
        if predicted is None or not predicted.is_whole:
            return None
        here = self.blocks.places_at(turn.mark, pages[: max(0, turn.prompt_tokens - 1) // page_tokens])
        if here is None:
            return None
        before = self.index.pages_of(turn.parent or turn.key)
        return Found(
            predicted=predicted,
            here=here,
            page_tokens=page_tokens,
            has_states=turn.mark.knowledge.has_states is True,
            shared_pages=None if before is None else shared_pages(before, pages),
        )

    def _has_other_names(self, pages: Sequence[int], usage: Usage) -> bool:
        """A context that was just computed is nowhere, though all is told of. An answer of one token may be here before
        what is told of it."""
        known = self.blocks.knowledge
        if not (known.kv and known.kv_whole) or (usage.completion_tokens or 0) < 2 or not pages:
            return False
        return not self.blocks.places(pages[:1])[0]

    def _on_unfollowed(self, turn: Followed, why: str) -> None:
        usage = turn.usage
        self.score.note(turn.key.agent, None, usage, None)
        tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        self.index.on_unfollowed(turn.key, turn.session, tokens, turn.ended_at, why)

    def _complain(self, page_tokens: int) -> None:
        """Once for each tier that begins to take without giving."""
        for figures in self._figures(page_tokens):
            is_new = figures.tier not in self._complaining
            if figures.complaint is not None and is_new:
                self._complaining.add(figures.tier)
                self._set_alert(_alert(figures.tier), figures.complaint)
            elif figures.complaint is None and not is_new:
                self._complaining.remove(figures.tier)
                self._set_alert(_alert(figures.tier), "")

    # The picture

    def view(self) -> CacheView:
        """Now."""
        known = self.blocks.knowledge
        unknown = NOT_TOLD if self._feed is None or not known.kv else None
        standings = self.index.standings(self._clock.monotonic())
        return CacheView(
            contexts=tuple(_context_view(standing) for standing in standings),
            tiers=tuple(self._tier_view(figures) for figures in self._figures(known.page_tokens)),
            predicted=_prediction_view(self.score.since_start),
            predicted_lately=_prediction_view(self.score.recent),
            canary=self._canary(),
            unknown=unknown,
        )

    def _figures(self, page_tokens: int | None) -> list[TierFigures]:
        known = self.blocks.knowledge
        told = {Tier.L1: known.kv, Tier.L2: known.kv, Tier.L3: known.l3}
        near = known.has_states is False or (known.has_states is True and known.states)
        states = {Tier.L1: near, Tier.L2: near, Tier.L3: known.has_states is not None}
        return [self.ledger.figures(tier, page_tokens, is_told=told[tier], states_told=states[tier]) for tier in Tier]

    def _tier_view(self, figures: TierFigures) -> TierView:
        known = self.blocks.knowledge
        page_tokens = known.page_tokens or 0
        held = self.index.held_pages(figures.tier) if figures.held_tokens is not None else {}
        holders = tuple(
            HolderView(agent=None if agent == SHARED else agent, tokens=pages * page_tokens)
            for agent, pages in sorted(held.items(), key=lambda each: -each[1])
        )
        plain = {name: getattr(figures, name) for name in _FIGURES}
        return TierView(
            tier=figures.tier.name,
            capacity_tokens=figures.capacity.tokens,
            state_slots=figures.capacity.state_slots,
            holders=holders,
            is_part=figures.held_tokens is not None and figures.tier is not Tier.L3 and not known.kv_whole,
            complaint=figures.complaint,
            **plain,
        )


_FIGURES = tuple(
    name for name in TierView.__struct_fields__ if name in TierFigures.__struct_fields__ and name != "tier"
)


def _alert(tier: Tier) -> str:
    return f"tier_{tier.name.lower()}"


def _context_view(standing: Standing) -> ResidencyView:
    found = standing.prediction
    return ResidencyView(
        agent=standing.key.agent,
        context=standing.key.context,
        session=standing.session,
        context_tokens=found.context_tokens,
        usable_tokens=found.usable_tokens,
        l1_tokens=found.l1_tokens,
        l2_tokens=found.l2_tokens,
        l3_tokens=found.l3_tokens,
        unusable_tokens=found.unusable_tokens,
        missing_tokens=found.missing_tokens,
        unknown_tokens=found.unknown_tokens,
        why_unknown=found.why_unknown,
        shared_tokens=standing.shared_tokens,
        answered_at=standing.answered_at,
    )


def _prediction_view(figures: Figures) -> PredictionView:
    return PredictionView(
        turns=figures.turns,
        within_page=figures.within_page,
        tier_turns=figures.tier_turns,
        tier_right=figures.tier_right,
        unknown=figures.unknown,
    )

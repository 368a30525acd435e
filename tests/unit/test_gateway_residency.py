"""Turns' contexts followed, and the picture of them: unknown is said so, a tier that only takes is told of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from governor.clock import SystemClock
from governor.errors import UpstreamUnavailable
from governor.gateway.cache_metrics import CacheMetrics
from governor.gateway.residency import NOT_TOLD, Residency
from governor.residency.blocks import Blocks, Tier
from governor.residency.ledger import Sizes, Totals
from governor.residency.names import page_numbers
from governor.snapshot import CacheView, HolderView
from governor.tokens.chain import Located, SessionIndex
from governor.types import AgentName, Usage
from serve.engine import TokenIds

PAGE = 64
ANN, BEN = AgentName("ann"), AgentName("ben")
PROMPT = tuple(range(1, 641))
CAPACITIES = {Tier.L1: Totals(tokens=8192, state_slots=32), Tier.L2: Totals(tokens=9999), Tier.L3: Totals()}


class Feed:
    """An engine that tells; the test is the engine."""

    def __init__(self) -> None:
        self.blocks: Blocks
        self.is_up = True
        self.learned = 0
        self.relisted = 0

    async def run(self, blocks: Blocks) -> None:
        self.blocks = blocks
        blocks.on_reset()
        blocks.on_cleared()
        blocks.on_model(page_tokens=PAGE, has_states=False)
        blocks.on_l3_cleared()
        await asyncio.Event().wait()

    async def learn(self, blocks: Blocks) -> dict[Tier, Totals]:
        self.learned += 1
        if not self.is_up:
            raise UpstreamUnavailable("nobody there")
        return CAPACITIES

    async def sizes(self, page_tokens: int) -> Sizes | None:
        return Sizes(token_bytes=100_000.0, state_bytes=0.0)

    def relist(self) -> None:
        self.relisted += 1


class Alerts:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: str, text: str) -> None:
        self.told.append((name, text))


@asynccontextmanager
async def running(feed: Feed | None, alerts: Alerts | None = None) -> AsyncIterator[Residency]:
    residency = Residency(feed, SystemClock(), alerts or Alerts())
    task = asyncio.create_task(residency.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield residency
        await residency.settled()
        residency.index.check_integrity()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def located(agent: AgentName, *, session: str = "s") -> Located:
    return SessionIndex().locate(agent, b"head", [b'{"role":"user","content":"hi"}'], session)


def served(device: int = 0, host: int = 0, storage: int = 0) -> Usage:
    return Usage(
        prompt_tokens=len(PROMPT),
        completion_tokens=1,
        cached_tokens=device + host + storage,
        cached_device_tokens=device,
        cached_host_tokens=host,
        cached_storage_tokens=storage,
    )


async def turn(residency: Residency, agent: AgentName, usage: Usage, *pieces: TokenIds) -> None:
    followed = residency.on_granted(agent, located(agent))
    for ids in pieces:
        followed.on_ids(ids)
    followed.on_ended(usage, well=True)
    await residency.settled()


def told(view: CacheView) -> dict[str, float]:
    """The page of metrics."""
    registry = CollectorRegistry()
    registry.register(CacheMetrics(lambda: view))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_an_engine_that_tells_nothing_has_unknown_tiers() -> None:
    async with running(None) as residency:
        residency.on_engine_ready(["m"])
        await turn(residency, ANN, served(device=64), TokenIds(PROMPT, (1,)))
        view = residency.view()
    (context,) = view.contexts
    assert (context.agent, context.context_tokens, context.unknown_tokens) == ("ann", 641, 641)
    assert (context.usable_tokens, context.l1_tokens, context.missing_tokens) == (None, None, None)
    assert view.unknown == context.why_unknown == NOT_TOLD
    assert {tier.held_tokens for tier in view.tiers} == {tier.written_tokens for tier in view.tiers} == {None}
    assert [tier.served_tokens for tier in view.tiers] == [64, 0, 0]
    assert (view.predicted.turns, view.predicted.unknown) == (0, 1)
    page = told(view)
    assert [name for name in page if "held" in name or "written" in name or "agent_tokens" in name] == []
    assert page['governor_cache_predictions_total{of="tokens",outcome="unknown"}'] == 1


async def test_turns_are_held_against_what_was_known_at_their_grant() -> None:
    feed = Feed()
    async with running(feed) as residency:
        residency.on_engine_ready(["m"])
        pages = page_numbers(PROMPT, PAGE)
        feed.blocks.on_stored(Tier.L1, pages[:4], PAGE)
        followed = residency.on_granted(ANN, located(ANN))
        feed.blocks.on_stored(Tier.L1, pages, PAGE)
        followed.on_ids(TokenIds(PROMPT, (7, 8)))
        followed.on_ids(TokenIds((*PROMPT, 7), (9,) * 100))
        followed.on_ended(served(device=256), well=True)
        await turn(residency, BEN, served(device=64), TokenIds(PROMPT, (1,)))
        view = residency.view()
    assert (view.predicted.turns, view.predicted.within_page, view.predicted.tier_right) == (2, 1, 1)
    ben, ann = view.contexts
    assert (ann.context_tokens, ann.l1_tokens, ann.missing_tokens) == (741, 640, 101)
    assert ben.shared_tokens == ann.shared_tokens == 640
    assert view.tiers[0].holders == (HolderView(agent=None, tokens=640),)
    page = told(view)
    assert page['governor_cache_agent_tokens{agent="(shared)",tier="L1"}'] == 640
    assert page['governor_cache_served_tokens_total{tier="L1"}'] == 320
    assert page['governor_cache_predictions_total{of="tokens",outcome="wrong"}'] == 1
    assert (view.tiers[0].capacity_tokens, view.tiers[0].state_slots, view.unknown) == (8192, 32, None)
    assert not residency.blocks._marks


async def test_what_nobody_tells_of_is_unknown_and_what_was_missed_is_said_to_be() -> None:
    feed = Feed()
    async with running(feed) as residency:
        residency.on_engine_ready(["m"])
        feed.blocks.on_model(page_tokens=PAGE, has_states=True)
        feed.blocks.on_states([(1, [Tier.L1])])
        feed.blocks.on_stored(Tier.L1, range(10), PAGE)
        l1 = residency.view().tiers[0]
        assert (l1.held_tokens, l1.held_states, l1.is_part) == (640, 1, False)
        feed.blocks.on_states_lost()
        assert residency.view().tiers[0].held_states is None
        assert not [name for name in told(residency.view()) if "held_states" in name]
        feed.blocks.on_reset()
        feed.blocks.on_stored(Tier.L1, range(3), PAGE)
        l1 = residency.view().tiers[0]
        assert (l1.held_tokens, l1.is_part) == (192, True)
        assert not [name for name in told(residency.view()) if "held_tokens" in name]


class FailingFeed(Feed):
    """With a bug that shows once, after something was told."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(self, blocks: Blocks) -> None:
        self.runs += 1
        if self.runs == 1:
            blocks.on_cleared()
            blocks.on_stored(Tier.L1, range(3), PAGE)
            raise RuntimeError("a bug")
        await super().run(blocks)


async def test_a_feed_that_fails_ends_what_is_known_and_not_the_work_on_turns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = FailingFeed()
    residency = Residency(feed, SystemClock(), Alerts(), listen_again_s=0.05)
    task = asyncio.create_task(residency.run())
    async with asyncio.timeout(5):
        while "a bug" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert residency.view().unknown == NOT_TOLD
        await turn(residency, ANN, served(), TokenIds(PROMPT, (1,)))
        while not residency.blocks.knowledge.kv_whole:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_turn_whose_answer_does_not_tell_what_was_cached_is_no_success_and_is_counted() -> None:
    async with running(Feed()) as residency:
        silent = Usage(prompt_tokens=len(PROMPT), completion_tokens=1)
        await turn(residency, ANN, silent, TokenIds(PROMPT, (1,)))
        await turn(residency, ANN, silent)
        residency.on_granted(ANN, located(ANN)).on_ended(Usage(), well=False)
        await residency.settled()
        said = residency.view().predicted
    assert (said.turns, said.unknown) == (0, 2)


async def test_a_turn_whose_tokens_were_not_told_makes_its_context_unknown() -> None:
    feed = Feed()
    async with running(feed) as residency:
        await turn(residency, ANN, served(), TokenIds(PROMPT, (1,)))
        await turn(residency, ANN, served())
        (context,) = residency.view().contexts
        assert (context.usable_tokens, context.unknown_tokens) == (None, 641)
        await turn(residency, ANN, served(), TokenIds((1 << 40, *PROMPT), (1,)))
        (context,) = residency.view().contexts
        assert context.usable_tokens is None
        salted = replace(served(device=576), completion_tokens=2)
        await turn(residency, ANN, salted, TokenIds(PROMPT, (1, 2)))
        (context,) = residency.view().contexts
        assert (context.usable_tokens, context.why_unknown) == (
            None,
            "the engine's pages have other names than these tokens",
        )
        feed.blocks.on_stored(Tier.L1, page_numbers(PROMPT, PAGE), PAGE)
        await turn(residency, ANN, salted, TokenIds(PROMPT, (1, 2)))
        assert residency.view().contexts[0].l1_tokens == 640
        failed = residency.on_granted(BEN, located(BEN))
        failed.on_ended(Usage(), well=False)
    assert len(residency.index) == 1


async def test_a_tier_that_only_takes_is_told_of_once() -> None:
    feed, alerts = Feed(), Alerts()
    async with running(feed, alerts) as residency:
        residency.on_engine_ready(["m"])
        await turn(residency, ANN, served(), TokenIds(PROMPT, (1,)))
        residency.on_engine_ready(["m"])
        async with asyncio.timeout(5):
            while not residency.ledger.sizes.is_known:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        feed.blocks.on_l3_written(range(700))
        await turn(residency, ANN, served(device=64, host=64), TokenIds(PROMPT, (1,)))
        feed.blocks.on_l3_written(range(700, 800))
        await turn(residency, ANN, served(device=64), TokenIds(PROMPT, (1,)))
        assert alerts.told == [("tier_l3", "L3 was written 44,800 tokens (4.5 GB) and has served none of them")]
        assert residency.view().tiers[2].complaint
        await turn(residency, ANN, served(storage=640), TokenIds(PROMPT, (1,)))
        assert alerts.told[1:] == [("tier_l3", "")]


async def test_an_engine_that_cannot_be_asked_and_another_model() -> None:
    feed = Feed()
    feed.is_up = False
    async with running(feed) as residency:
        residency.on_engine_ready(["m"])
        await turn(residency, ANN, served(), TokenIds(PROMPT, (1,)))
        assert (feed.learned, residency.view().tiers[0].capacity_tokens) == (1, None)
        residency.relist_l3()
        assert feed.relisted == 1
        residency.on_engine_ready(["m"])
        assert len(residency.index) == 1
        residency.on_engine_ready(["another"])
        assert len(residency.index) == 0

"""What our own listeners make of the twin's feeds is what the twin has, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from serve.sglang_feed import (
    FeedEvent,
    KvCleared,
    KvFeed,
    KvRemoved,
    KvReset,
    KvStored,
    L3Changed,
    PluginFeed,
    PluginHello,
    PluginLost,
    PrefixMatched,
    RequestAdmitted,
    StateChanged,
    StatesKnown,
)
from serve.sglang_feed.events import KvTier, L3Change, StateTier
from serve.sglang_feed.plugin import plugin_hello
from serve.twin.cost import Cost
from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Ask, Cached, Ended, EndReason, EngineEvent, EngineSettings, Wrote
from serve.twin.tiers_model import Tier, TierSettings
from serve.twin_server.content import Content
from serve.twin_server.feeds import Feeds
from serve.twin_server.forgetting import Forgetting
from serve.twin_server.kv_events import KvPublisher
from serve.twin_server.kv_recorder import BlockStored, KvEvent
from tests.twin.talk import Residency, States, Talk, Truth, tier_settings

_TIERS = {KvTier.DEVICE: Tier.L1, KvTier.HOST: Tier.L2}
_PLACES = {StateTier.DEVICE: Tier.L1, StateTier.HOST: Tier.L2}


class Listener:
    """What one holds to be there who has heard both feeds."""

    def __init__(self) -> None:
        self.kv: Residency = {Tier.L1: set(), Tier.L2: set()}
        self.tokens: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        """Of each page that was ever stored: the page before it, and its tokens."""
        self.states: States = {}
        self.pages: set[str] = set()
        self.stored_states: set[str] = set()
        self.resets: list[str] = []
        self.hellos: list[PluginHello] = []
        self.matches: dict[str, PrefixMatched] = {}
        self.admitted: dict[str, RequestAdmitted] = {}
        self.l3: list[L3Changed] = []

    def __call__(self, event: FeedEvent) -> None:
        match event:
            case KvReset() | KvCleared():
                self.kv = {Tier.L1: set(), Tier.L2: set()}
                if isinstance(event, KvReset):
                    self.resets.append(event.reason)
            case KvStored():
                self._on_stored(event)
            case KvRemoved():
                assert set(event.hashes) <= self.kv[_TIERS[event.tier]] or len(self.resets) > 1
                self.kv[_TIERS[event.tier]] -= set(event.hashes)
            case PluginHello():
                self.hellos.append(event)
            case PluginLost():
                self.states.clear()
            case StatesKnown(states=states):
                self.states = {each.page: (each.tokens, places(each.tiers)) for each in states}
            case StateChanged():
                self.states[event.page] = (event.tokens, places(event.tiers))
                if not event.tiers:
                    del self.states[event.page]
            case PrefixMatched():
                self.matches[event.rid] = event
            case RequestAdmitted():
                self.admitted[event.rid] = event
            case L3Changed():
                self._on_l3(event)

    def _on_stored(self, event: KvStored) -> None:
        page, parent = event.page_tokens, event.parent
        assert len(event.token_ids) == page * len(event.hashes)
        for number, name in enumerate(event.hashes):
            said = (parent, event.token_ids[number * page : (number + 1) * page])
            assert self.tokens.setdefault(name, said) == said
            parent = name
        self.kv[_TIERS[event.tier]] |= set(event.hashes)

    def _on_l3(self, event: L3Changed) -> None:
        self.l3.append(event)
        self.pages |= set(event.pages)
        self.stored_states |= set(event.state_pages)
        if event.file is not None:
            fallen = self.stored_states if ".mamba" in event.file else self.pages
            fallen.remove(event.file[:64])

    async def until(self, holds: Callable[[], bool], within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110 - the feeds have their own tasks and no event for this
                await asyncio.sleep(0.01)


def places(tiers: frozenset[StateTier]) -> frozenset[Tier]:
    return frozenset(_PLACES[tier] for tier in tiers)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="twin-") as name:  # pytest's folders are too long for a socket
        yield Path(name)


def made(folder: Path, seed: int = 1, loses_batch: Callable[[], bool] = lambda: False, **settings: int | None) -> Talk:
    tiers = tier_settings(**settings)  # type: ignore[arg-type]
    feeds, content = feeds_in(folder, tiers, loses_batch)
    return Talk(tiers, content, feeds, seed)


def feeds_in(
    folder: Path, tiers: TierSettings, loses_batch: Callable[[], bool] = lambda: False
) -> tuple[Feeds, Content]:
    content = Content(tiers.page_tokens)
    feeds = Feeds(
        tiers,
        content,
        "twin/model",
        kv_events_endpoint=f"ipc://{folder}/kv",
        kv_replay_endpoint=f"ipc://{folder}/replay",
        plugin_socket=folder / "plugin",
        loses_batch=loses_batch,
    )
    return feeds, content


@asynccontextmanager
async def listening(folder: Path, *, is_open: bool = True) -> AsyncIterator[Listener]:
    """``is_open``: wait until both are heard. What L3 has had before is not told."""
    listener = Listener()
    kv = KvFeed(f"ipc://{folder}/kv", f"ipc://{folder}/replay", listener)
    running = [asyncio.create_task(each.run()) for each in (kv, PluginFeed(folder / "plugin", listener))]
    try:
        if is_open:
            await listener.until(lambda: bool(listener.hellos and listener.resets))
        yield listener
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def played(talk: Talk, turns: int) -> None:
    """The listeners run on the same loop."""
    for _ in talk.turns(turns):
        await asyncio.sleep(0)


async def agrees(listener: Listener, talk: Talk) -> None:
    """Copies under way may be told of or not, so none are."""
    talk.tiers.settle()
    talk.feeds.on_events(())
    await knows(listener, talk.truth)


async def knows(listener: Listener, truth: Truth) -> None:
    await listener.until(lambda: listener.kv == truth.residency() and listener.states == truth.states())
    await listener.until(lambda: (listener.pages, listener.stored_states) == truth.stored())
    assert listener.kv[Tier.L1]
    assert listener.kv[Tier.L2]


@pytest.mark.parametrize("slots", [0, 24])
async def test_a_listener_knows_what_is_where(folder: Path, slots: int) -> None:
    talk = made(folder, slots=slots)
    async with talk.feeds.open(), listening(folder) as listener:
        for _ in range(3):
            await played(talk, 15)
            await agrees(listener, talk)
            talk.flush()
            await listener.until(lambda: listener.kv == {Tier.L1: set(), Tier.L2: set()} and not listener.states)
            await played(talk, 5)
            await agrees(listener, talk)
        assert len(listener.resets) == 1
        assert bool(listener.states) == bool(slots)
        assert {event.change for event in listener.l3} == set(L3Change) - {L3Change.CLEARED}


async def test_what_nobody_holds_is_forgotten_and_never_named(folder: Path) -> None:
    talk = made(folder)
    talk.listeners.append(Forgetting(talk.content, talk.tiers, least_tokens=0))
    read = 0
    async with talk.feeds.open(), listening(folder) as listener:
        for _ in range(10):
            await played(talk, 15)
            await agrees(listener, talk)
            read = max(read, talk.content.kept_tokens)
            talk.content.check_integrity()
    settings = tier_settings()
    assert read < 3 * (settings.device_tokens + settings.host_tokens + (settings.storage_tokens or 0))
    everything = made(folder)
    async with everything.feeds.open():
        await played(everything, 150)
    assert everything.content.kept_tokens > 2 * read


async def test_who_comes_late_is_told_all(folder: Path) -> None:
    talk = made(folder, storage_tokens=None)
    async with talk.feeds.open():
        await played(talk, 20)
        talk.tiers.settle()
        talk.feeds.on_events(())
        async with listening(folder) as listener:
            await listener.until(
                lambda: listener.kv == talk.truth.residency() and listener.states == talk.truth.states()
            )


async def test_lost_batches_come_by_replay(folder: Path) -> None:
    lost = iter([False] * 5 + [True] * 4 + [False] * 3 + [True] * 2)
    talk = made(folder, loses_batch=lambda: next(lost, False))
    async with talk.feeds.open(), listening(folder) as listener:
        await played(talk, 20)
        await agrees(listener, talk)
        assert next(lost, None) is None
        assert len(listener.resets) == 1


async def test_a_loss_at_the_end_is_made_good_in_the_silence(folder: Path) -> None:
    losing = [False]
    talk = made(folder, loses_batch=lambda: losing[0])
    async with talk.feeds.open(), listening(folder) as listener:
        await played(talk, 5)
        await agrees(listener, talk)
        losing[0] = True
        await played(talk, 5)
        await agrees(listener, talk)
        assert len(listener.resets) == 1


async def test_a_gap_that_is_not_kept_makes_the_listener_forget(folder: Path) -> None:
    listener = Listener()
    publisher = KvPublisher(f"ipc://{folder}/kv", f"ipc://{folder}/replay", kept=3)
    running = asyncio.create_task(KvFeed(f"ipc://{folder}/kv", f"ipc://{folder}/replay", listener).run())
    async with publisher.open():
        publisher.publish(page(0))
        await listener.until(lambda: listener.kv[Tier.L1] == {0})
        for number in range(1, 7):
            publisher.publish(page(number), is_lost=True)
        publisher.publish(page(7))
        await listener.until(lambda: listener.kv[Tier.L1] == {5, 6, 7})
        assert listener.resets[-1] == "batches 1 to 4 are lost"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def page(name: int) -> list[KvEvent]:
    return [BlockStored(block_hashes=[name], token_ids=[1] * 64, block_size=64, medium="GPU")]


async def test_a_new_twin_at_the_same_place_is_noticed(folder: Path) -> None:
    async with listening(folder, is_open=False) as listener:
        first = made(folder, seed=1)
        async with first.feeds.open():
            await listener.until(lambda: bool(listener.hellos and listener.resets))
            await played(first, 10)
            await agrees(listener, first)
        second = made(folder, seed=2)
        async with second.feeds.open():
            listener.pages, listener.stored_states = set(), set()
            await listener.until(lambda: len(listener.hellos) == 2 and len(listener.resets) >= 2)
            await played(second, 10)
            await agrees(listener, second)
        assert listener.hellos[0].instance != listener.hellos[1].instance


async def test_requests_are_told_by_name(folder: Path) -> None:
    talk = made(folder)
    async with talk.feeds.open(), listening(folder) as listener:
        rids = list(talk.turns(10))
        talk.flush()
        rids += talk.turns(10)
        await listener.until(lambda: set(listener.admitted) == set(rids))
        for rid in rids:
            admitted, matched = listener.admitted[rid], listener.matches[rid]
            served = admitted.device_tokens + admitted.host_tokens + admitted.storage_tokens
            assert served == matched.usable_tokens <= matched.kv_tokens <= matched.prompt_tokens
            assert matched.prompt_tokens == admitted.prompt_tokens - 1
        assert any(listener.admitted[rid].storage_tokens for rid in rids)
        assert {event.rid for event in listener.l3 if event.change is L3Change.LOADED} <= set(rids)


async def test_requests_of_a_whole_engine(folder: Path) -> None:
    """Many at once: they wait, are aborted, are served from L1 and L2."""
    feeds, content = feeds_in(folder, settings := tier_settings())
    engine = TwinEngine(
        EngineSettings(tiers=settings, context_tokens=4096, chunked_prefill_tokens=256, max_running_requests=4),
        Cost(prefill_token_s=1e-3, prefill_square_s=0, decode_step_s=0.01, decode_request_s=0, decode_kv_token_s=0),
        observer=feeds,
    )
    chance, said, events = Random(5), [array("I") for _ in range(5)], list[EngineEvent]()  # noqa: S311 - a game
    async with feeds.open(), listening(folder) as listener:
        for number in range(60):
            agent = number % len(said)
            prompt = said[agent] if len(said[agent]) < 1000 else array("I")
            prompt = prompt + array("I", (chance.randrange(1000) for _ in range(chance.randint(2, 250))))
            said[agent] = prompt + array("I", (chance.randrange(1000) for _ in range(chance.randint(1, 150))))
            key, tokens = content.context(said[agent]).key, len(said[agent]) - len(prompt)
            rid = f"r{number:02}"
            ask = Ask(
                rid=rid,
                prompt=key.cut(0, len(prompt)),
                output=key.cut(len(prompt), len(key)),
                writes_tokens=tokens,
                max_new_tokens=tokens,
            )
            feeds.on_ask(ask)
            engine.submit(engine.now, ask)
            if chance.random() < 0.1:
                engine.abort(engine.now + 0.3, rid)
            for _ in range(chance.randint(1, 8)):
                told = engine.run(engine.now + 0.1)
                feeds.on_events(told)
                events += told
                await asyncio.sleep(0)
        while (when := engine.next_at()) is not None:
            told = engine.run(when)
            feeds.on_events(told)
            events += told
        await knows(listener, Truth(engine.tiers, content))
        ended = {event.rid: event for event in events if isinstance(event, Ended)}
        served = {rid: event for rid, event in ended.items() if rid in listener.admitted}
        assert len(ended) == 60
        assert EndReason.ABORT in {event.reason for event in ended.values()}
        assert {rid for rid, event in ended.items() if event.reason is EndReason.STOP} <= set(served)
        for rid, event in served.items():
            admitted, cached = listener.admitted[rid], event.cached
            split = (admitted.device_tokens, admitted.host_tokens, admitted.storage_tokens)
            assert split == (cached.device, cached.host, cached.storage)
            assert admitted.prompt_tokens == event.prompt_tokens == listener.matches[rid].prompt_tokens + 1
        assert any(event.cached.device for event in served.values())
        assert any(event.cached.host for event in served.values())


async def test_the_twin_answers_for_the_plugin(folder: Path) -> None:
    talk = made(folder)
    async with talk.feeds.open():
        hello = await plugin_hello(folder / "plugin")
    assert hello is not None
    assert (hello.page_tokens, hello.has_states, hello.missing_hooks) == (64, True, ())
    assert await plugin_hello(folder / "plugin") is None


async def test_batches_go_out_by_chunks_steps_and_when_idle(folder: Path) -> None:
    """One batch for each chunk of a prefill; what decoding changes waits for its interval, or the end."""
    batches: list[bool] = []

    def counted() -> bool:
        batches.append(True)
        return False

    talk = made(folder, loses_batch=counted)
    tiers, feeds = talk.tiers, talk.feeds
    prompt = talk.content.context(array("I", range(512))).key
    feeds.on_events(())
    assert len(batches) == 1  # that it begins with nothing
    feeds.on_events(())
    assert len(batches) == 1  # nothing is no batch
    feeds.on_ask(Ask(rid="r", prompt=prompt, output=prompt, writes_tokens=9, max_new_tokens=9))
    request = tiers.admit(prompt)
    for count in (2, 3):
        tiers.extend(request, 256)
        tiers.checkpoint(request)
        assert len(batches) == count
    tiers.settle()
    feeds.on_events([Wrote(at=0, rid="r", start=0, stop=7)])
    assert len(batches) == 3
    feeds.on_events([Wrote(at=0, rid="r", start=7, stop=8)])
    assert len(batches) == 4
    tiers.finish(request)
    tiers.evict(tokens=64)
    feeds.on_events([Wrote(at=0, rid="r", start=8, stop=9)])
    assert len(batches) == 4
    ended = Ended(at=0, rid="r", reason=EndReason.STOP, prompt_tokens=512, completion_tokens=9, cached=Cached())
    feeds.on_events([ended])
    assert len(batches) == 5
    async with feeds.open():
        pass

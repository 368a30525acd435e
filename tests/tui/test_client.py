"""The client against a real governor and the real pages: follows, resumes, comes back, says why it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from governor import events
from governor.acts import CancelTurn, PauseAgent, ResumeAgent, SetPolicy
from governor.events import AnyEvent, EventLog
from governor.settings import Secret
from governor.types import TurnState
from serve.scripted import ScriptedEngine
from tests.harness import ADMIN_TOKEN, governed
from tests.tui import pictures
from tests.tui.pages import serving
from tests.tui.screens import QUICK
from tui.client import (
    Address,
    Disconnected,
    EventSplitter,
    Find,
    GovernorClient,
    Happened,
    Loaded,
    NotActed,
    NotConnected,
    Update,
)


class Heard:
    """What a client has told, in order."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self._news = asyncio.Event()

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        self._news.set()

    @property
    def events(self) -> list[AnyEvent]:
        return [update.event for update in self.updates if isinstance(update, Happened)]

    @property
    def reasons(self) -> list[str]:
        return [update.why for update in self.updates if isinstance(update, Disconnected)]

    @property
    def loaded(self) -> list[Loaded]:
        return [update for update in self.updates if isinstance(update, Loaded)]

    def ended(self) -> list[str]:
        """Agents of ended turns."""
        return [event.agent for event in self.events if isinstance(event, events.TurnEnded)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def following(find: Find) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(GovernorClient(find, QUICK).follow(heard))
    try:
        yield heard
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def end(agent: str) -> events.TurnEnded:
    return events.TurnEnded(at=pictures.NOW, turn_id=f"t-{agent}", agent=agent, state=TurnState.OK)


async def test_a_real_governor_is_followed_and_met_again_after_its_restart(tmp_path: Path) -> None:
    address: list[Address] = []
    async with ScriptedEngine() as engine, following(lambda: address[0] if address else None) as heard:
        await heard.until(lambda: bool(heard.reasons))
        assert heard.reasons[0] == "no governor runs from this home"
        async with governed(engine.url, tmp_path) as governor:
            address.append(Address(governor.url, Secret(ADMIN_TOKEN)))
            await heard.until(lambda: bool(heard.loaded))
            answer = await governor.chat(model="scripted")
            assert answer.status_code == 200
            await heard.until(lambda: heard.ended() == ["alice"])
            kinds = [type(event) for event in heard.events]
            for kind in (events.TurnStarted, events.TurnGranted, events.TurnEnded):
                assert kinds.count(kind) == 1
            await heard.until(lambda: sum(heard.loaded[-1].snapshot.agents[0].turns.values()) == 1)
            reported = heard.loaded[-1].snapshot.agents[0].last_usage
            assert reported is not None
            assert reported.prompt_tokens
            port, losses = int(governor.url.rpartition(":")[2]), len(heard.reasons)
            started_at = heard.loaded[-1].snapshot.started_at
        await heard.until(lambda: len(heard.reasons) > losses)
        async with governed(engine.url, tmp_path, port=port, agents=("bob",)) as governor:
            await heard.until(lambda: heard.loaded[-1].snapshot.started_at > started_at)
            assert heard.loaded[-1].snapshot.agents[0].turns == {}, "another life counts anew"
            await governor.chat("bob", model="scripted")
            await heard.until(lambda: heard.ended() == ["alice", "bob"])


async def test_events_of_before_and_after_a_lost_connection_come_once() -> None:
    event_log = EventLog()
    for name in ("a", "b"):
        event_log.publish(end(name))
    async with serving(pictures.snapshot(), event_log) as pages, following(pages.find) as heard:
        await heard.until(lambda: heard.ended() == ["a", "b"])
        pages.cut()
        event_log.publish(end("c"))
        await heard.until(lambda: heard.ended() == ["a", "b", "c"])
        assert len(heard.reasons) == 1
        event_log.publish(end("d"))
        await heard.until(lambda: len(heard.ended()) == 4)
        assert heard.ended() == ["a", "b", "c", "d"]


async def test_a_gap_is_told_and_the_state_loaded_anew() -> None:
    event_log = EventLog(capacity=3)
    async with serving(pictures.snapshot(), event_log) as pages, following(pages.find) as heard:
        await heard.until(lambda: bool(heard.loaded))
        for number in range(9):
            event_log.publish(end(str(number)))
        pages.snapshot = pictures.busy()
        await heard.until(lambda: heard.ended() == ["6", "7", "8"])
        assert [type(event) for event in heard.events].count(events.Gap) == 1
        await heard.until(lambda: len(heard.loaded[-1].snapshot.agents) == 5)
        event_log.publish(end("9"))
        await heard.until(lambda: heard.ended() == ["6", "7", "8", "9"])


async def test_another_life_is_heard_from_its_beginning() -> None:
    """Its ids may be larger than those of the old one, so that the log itself would see no gap."""
    old, new = EventLog(), EventLog()
    old.publish(end("old"))
    for name in ("new-1", "new-2", "new-3"):
        new.publish(end(name))
    address: list[Address] = []
    async with following(lambda: address[0] if address else None) as heard:
        async with serving(pictures.snapshot(), old) as pages:
            address[:] = [pages.find()]
            await heard.until(lambda: heard.ended() == ["old"])
        async with serving(pictures.snapshot(started_at=pictures.NOW), new) as pages:
            address[:] = [pages.find()]
            await heard.until(lambda: heard.ended() == ["old", "new-1", "new-2", "new-3"])


async def test_what_changes_without_an_event_is_seen() -> None:
    async with serving(pictures.snapshot()) as pages, following(pages.find) as heard:
        await heard.until(lambda: bool(heard.loaded))
        pages.snapshot = pictures.busy()
        await heard.until(lambda: len(heard.loaded[-1].snapshot.agents) == 5)


async def test_a_wrong_token_is_said() -> None:
    async with (
        serving(pictures.snapshot()) as pages,
        following(lambda: Address(pages.url, Secret("adm-of-yesterday"))) as heard,
    ):
        await heard.until(lambda: len(heard.reasons) >= 2)
        assert set(heard.reasons) == {"the governor does not take this admin token"}
        assert not heard.loaded


async def test_a_port_where_nothing_listens_is_said_with_growing_pauses() -> None:
    async with serving(pictures.snapshot()) as pages:
        gone = pages.find()
    async with following(lambda: gone) as heard:
        await heard.until(lambda: len(heard.reasons) >= 5)
        assert set(heard.reasons) == {f"no connection to {gone.url}: ConnectError"}
        pauses = [update.retry_in_s for update in heard.updates if isinstance(update, Disconnected)]
        assert pauses[:5] == [0.02, 0.04, 0.08, 0.1, 0.1]


async def test_some_other_program_on_the_port_is_said() -> None:
    async with ScriptedEngine() as engine, following(lambda: Address(engine.url, Secret("x"))) as heard:
        await heard.until(lambda: bool(heard.reasons))
        assert heard.reasons[0].startswith("the governor answered 404 to /governor/state")


async def test_hostile_text_arrives_as_it_is() -> None:
    event_log = EventLog()
    async with serving(pictures.snapshot(), event_log) as pages, following(pages.find) as heard:
        sent = [event for text in pictures.HOSTILE for event in pictures.hostile_events(text)]
        for event in sent:
            event_log.publish(event)
        await heard.until(lambda: len(heard.events) == len(sent))
        assert heard.events == sent
        assert not heard.reasons


async def test_the_owner_acts_and_hears_of_it(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, governed(engine.url, tmp_path) as governor:

        def find() -> Address:
            return Address(governor.url, Secret(ADMIN_TOKEN))

        client = GovernorClient(find, QUICK, name="web")
        async with following(find) as heard:
            await heard.until(lambda: bool(heard.loaded))
            acted = await client.act(PauseAgent(agent="alice"))
            assert (acted.action, acted.target, acted.changed) == ("pause", "alice", True)
            assert not (await client.act(PauseAgent(agent="alice"))).changed
            await heard.until(lambda: heard.loaded[-1].snapshot.agents[0].held)
            await client.act(ResumeAgent(agent="alice"))
            await heard.until(lambda: not heard.loaded[-1].snapshot.agents[0].held)
            with pytest.raises(NotActed, match=r"^Turn t-1 is not open"):
                await client.act(CancelTurn(turn="t-1"))
            with pytest.raises(NotActed, match=r"did you mean 'final'\?"):
                await client.act(SetPolicy(agent="alice", key="output.finl", value=1))
            await heard.until(lambda: sum(isinstance(each, events.OwnerActed) for each in heard.events) == 5)
            told = [each for each in heard.events if isinstance(each, events.OwnerActed)]
            assert {each.who for each in told} == {"owner via web"}
            assert [each.outcome for each in told] == ["done", "unchanged", "done", "refused", "refused"]


async def test_acting_without_a_governor_says_so() -> None:
    with pytest.raises(NotConnected, match="no governor runs"):
        await GovernorClient(lambda: None, QUICK).act(ResumeAgent(agent="alice"))
    async with serving(pictures.snapshot()) as pages:
        with pytest.raises(NotActed, match="404 to /governor/actions/resume"):  # a governor that has no such page
            await GovernorClient(pages.find, QUICK).act(ResumeAgent(agent="alice"))
        gone = pages.find()
    with pytest.raises(NotConnected, match="no connection to"):
        await GovernorClient(lambda: gone, QUICK).act(ResumeAgent(agent="alice"))


def test_events_are_cut_at_any_byte() -> None:
    page = b': keep-alive\n\nid: 7\ndata: {"a":"\xe2\x80\xa8\xc2\x85"}\n\n: x\n\nid: 8\ndata: {}\n\n'
    whole = [(7, b'{"a":"\xe2\x80\xa8\xc2\x85"}'), (8, b"{}")]
    for size in range(1, len(page)):
        splitter = EventSplitter()
        chunks = [page[start : start + size] for start in range(0, len(page), size)]
        assert [event for chunk in chunks for event in splitter.feed(chunk)] == whole


@pytest.mark.parametrize("page", [b"data: {}\n\n", b"id: x\ndata: {}\n\n", b"a" * 2_000_000])
def test_another_page_is_refused(page: bytes) -> None:
    with pytest.raises(NotConnected):
        list(EventSplitter().feed(page))


async def test_an_unknown_kind_of_event_is_passed_over() -> None:
    async with serving(pictures.snapshot()) as pages, following(pages.find) as heard:
        await heard.until(lambda: bool(heard.loaded))
        pages.events.publish(TurnTeleported(at=pictures.NOW))  # type: ignore[arg-type]
        pages.events.publish(end("a"))
        await heard.until(lambda: heard.ended() == ["a"])
        assert len(heard.events) == 1
        assert not heard.reasons


class TurnTeleported(msgspec.Struct, frozen=True, tag_field="event", tag=True):
    """A kind of event that this version's client does not know. Not one of our own, which have to be on a page."""

    at: float

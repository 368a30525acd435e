"""Clients' compactions at the gateway: what is shown, kept and told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from governor import events
from governor.clock import ManualClock
from governor.events import TurnDecided
from governor.gateway.clients import LOOP_ALERT, Clients, Watching
from governor.gateway.metrics import Metrics
from governor.gateway.planner import prompt_of
from governor.gateway.turn import TurnBook
from governor.policy.model import ClientLoops, CompressionMode, CompressionPolicy
from governor.redact import Redactor
from governor.store.archive_model import ArchiveHealth, CompactedBy, Compaction, Head, LeftText, Recalled
from governor.store.model import StoreHealth, TurnClosed, TurnOpened
from governor.tokens.chain import SessionIndex, digest_head
from governor.types import AgentName, SessionId, Usage
from governor.wire.answer import Answer
from governor.wire.request import parse
from serve.engine import Endpoint

ME = AgentName("me")
WINDOW_TOKENS = 65_536
SYSTEM = {"role": "system", "content": "You are careful."}
TASK = {"role": "user", "content": "Please look."}


class Kept:
    """An archive and a turn log that keep what they are told."""

    def __init__(self) -> None:
        self.noted: list[Compaction] = []
        self.rows: list[TurnClosed] = []

    def keep(self, head: Head, left: tuple[LeftText, ...], compaction: Compaction) -> None:
        raise AssertionError("a client's compaction leaves nothing behind")

    def note(self, compaction: Compaction) -> None:
        self.noted.append(compaction)

    async def heads(self, agent: AgentName, session: SessionId) -> tuple[Head, ...]:
        return ()

    async def recall(self, handle: str, agent: AgentName | None = None) -> Recalled | None:
        return None

    async def compactions(self, agent: AgentName | None = None, most: int = 100) -> tuple[Compaction, ...]:
        return tuple(self.noted)

    def opened(self, record: TurnOpened) -> None:
        pass

    def decided(self, record: TurnDecided) -> None:
        pass

    def closed(self, record: TurnClosed) -> None:
        self.rows.append(record)


class KeptArchive(Kept):
    def health(self) -> ArchiveHealth:
        return ArchiveHealth(ok=True, pending=0, dropped=0)


class KeptLog(Kept):
    def lost(self, record: events.PrefixLost) -> None:
        raise AssertionError("nothing here computes anything again")

    def health(self) -> StoreHealth:
        return StoreHealth(ok=True, pending=0, dropped=0)


class Gateway:
    """As much of one as a turn's way past the watch."""

    def __init__(self, **policy: Any) -> None:
        self.policy = CompressionPolicy(**policy)
        self.archive, self.log = KeptArchive(), KeptLog()
        self.clock = ManualClock()
        self.events = events.EventLog()
        self.book = TurnBook(self.clock, self.log, self.events, Metrics(), Redactor(()))
        self.index = SessionIndex()
        self.clients = Clients(self.archive, self.events, self.clock)

    def turn(
        self,
        messages: Sequence[dict[str, Any]],
        tokens: int,
        *,
        stream: bool = False,
        as_sent: bool = True,
        **body: Any,
    ) -> tuple[Watching, dict[str, Any]]:
        """Returns the usage that the client saw, too."""
        request = parse(
            Endpoint.CHAT,
            msgspec.json.encode({"model": "m", "messages": messages, "stream": stream} | body),
        )
        prompt = prompt_of(request)
        with self.book.open(ME, Endpoint.CHAT.value, 1) as turn:
            turn.located = at = self.index.locate(ME, digest_head("m", prompt.tools), prompt.messages, "s")
            with self.clients.watching(turn, request, at, tokens, self.policy, WINDOW_TOKENS) as watching:
                watching.is_as_sent = as_sent
                usage: Any = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
                told = msgspec.json.encode({"choices": [], "usage": usage})
                if watching.usage is not None:
                    told = watching.usage(told)
                turn.answer = Answer(usage=Usage(prompt_tokens=tokens, completion_tokens=5), finish_reason="stop")
        seen: dict[str, Any] = msgspec.json.decode(told)["usage"]
        return watching, seen

    def compacts_in_vain(self, times: int, **body: Any) -> list[tuple[Watching, dict[str, Any]]]:
        found = []
        for n in range(times):
            call = {"role": "user", "content": f"You are a summarization agent creating a context checkpoint. {n}"}
            self.turn([call], 9_000)
            summary = {"role": "user", "content": f"[CONTEXT COMPACTION — REFERENCE ONLY] {n}"}
            found.append(self.turn([SYSTEM, TASK, summary], 50_000, **body))
        return found

    def published(self, kind: type[events.Event]) -> list[Any]:
        return [each.event for each in self.events.since(0) if isinstance(each.event, kind)]


def begun(**policy: Any) -> Gateway:
    gateway = Gateway(**policy)
    answer = {"role": "assistant", "content": "Done."}
    gateway.turn([SYSTEM, TASK], 30_000)
    gateway.turn([SYSTEM, TASK, answer, TASK], 50_000)
    return gateway


def test_a_compaction_is_kept_and_shown() -> None:
    gateway = begun()
    gateway.clock.advance(7)
    gateway.compacts_in_vain(1)
    (kept,) = gateway.archive.noted
    assert (kept.by, kept.outcome, kept.before_tokens, kept.after_tokens) == (
        CompactedBy.CLIENT,
        "no_shrink",
        50_000,
        50_000,
    )
    assert kept.at == gateway.clock.wall()
    assert kept.turn_id == gateway.log.rows[-1].turn_id
    assert kept.summary_turn == gateway.log.rows[-2].turn_id
    (shown,) = gateway.published(events.Compacted)
    assert (shown.by, shown.outcome, shown.after_tokens) == ("client", "no_shrink", 50_000)
    assert [flag.partition(":")[0] for flag in gateway.log.rows[-1].flags] == ["client_compaction_no_shrink"]
    assert gateway.published(events.Alert) == []


@pytest.mark.parametrize("mode", CompressionMode)
def test_told_only(mode: CompressionMode) -> None:
    gateway = begun(mode=mode)
    for watching, seen in gateway.compacts_in_vain(4):
        assert (watching.usage, watching.advice.compress_below) == (None, None)
        assert seen["prompt_tokens"] == 50_000
    (alert,) = gateway.published(events.Alert)
    assert alert.name == LOOP_ALERT
    assert "compacted 2 times in a row" in alert.detail
    assert "from 50,000 prompt tokens" in alert.detail
    assert 'client_loops = "stop"' in alert.detail


def test_stopped_by_usage() -> None:
    gateway = begun(client_loops=ClientLoops.STOP)
    (_, first_seen), (second, seen) = gateway.compacts_in_vain(2)
    assert first_seen == {"prompt_tokens": 50_000, "completion_tokens": 5, "total_tokens": 50_005}
    assert second.advice.compress_below is None
    assert seen == {
        "prompt_tokens": 30_000,
        "completion_tokens": 5,
        "total_tokens": 30_005,
        "governor": {"prompt_tokens": 50_000},
    }
    row = gateway.log.rows[-1]
    assert row.usage.prompt_tokens == 50_000
    assert "usage_lowered: 50,000 -> 30,000 prompt tokens told" in row.flags


def test_both_ways_are_open_where_prompts_may_be_made_shorter() -> None:
    gateway = begun(client_loops=ClientLoops.STOP, mode=CompressionMode.ENFORCE)
    watching, _ = gateway.compacts_in_vain(2)[-1]
    assert watching.advice.compress_below == 30_000
    assert watching.usage is not None
    shorter = b'{"usage":{"prompt_tokens":20000}}'
    assert watching.usage(shorter) is shorter


def test_a_client_that_goes_on_is_told_of_once_more() -> None:
    gateway = begun(client_loops=ClientLoops.STOP)
    seen = [usage["prompt_tokens"] for _, usage in gateway.compacts_in_vain(8)]
    assert seen == [50_000, 30_000, 15_000, 7_500, 50_000, 50_000, 50_000, 50_000]
    first, second = gateway.published(events.Alert)
    assert "would break the loop" not in first.detail
    assert "whatever usage it is told" in second.detail


def test_a_stream_without_usage_tells_nothing() -> None:
    """And so teaches nothing of what the client goes by."""
    gateway = Gateway(client_loops=ClientLoops.STOP)
    gateway.turn([SYSTEM, TASK], 50_000, stream=True)
    last, seen = gateway.compacts_in_vain(3, stream=True)[-1]
    assert last.advice.tell_at_most is None
    assert seen["prompt_tokens"] == 50_000


def test_figures_of_another_prompt_do_not_measure_the_clients() -> None:
    gateway = begun()
    call = {"role": "user", "content": "You are a summarization agent creating a context checkpoint."}
    gateway.turn([call], 9_000)
    summary = {"role": "user", "content": "[CONTEXT COMPACTION — REFERENCE ONLY]"}
    gateway.turn([SYSTEM, TASK, summary], 20_000, as_sent=False)
    assert [(kept.outcome, kept.after_tokens) for kept in gateway.archive.noted] == [("accepted", 20_000)]


def test_other_dialects_are_told_the_truth() -> None:
    gateway = begun(client_loops=ClientLoops.STOP)
    gateway.compacts_in_vain(2)
    request = parse(Endpoint.MESSAGES, msgspec.json.encode({"model": "m", "max_tokens": 5, "messages": [TASK]}))
    with gateway.book.open(ME, Endpoint.MESSAGES.value, 1) as turn:
        prompt = prompt_of(request)
        at = gateway.index.locate(ME, digest_head("m", None), prompt.messages, "s")
        with gateway.clients.watching(turn, request, at, 50_000, gateway.policy, None) as watching:
            assert watching.usage is None
            turn.answer = Answer(finish_reason="stop")

"""Pauses as clients and owners see them: through the gateway, asked for by the scheduler itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from governor import events
from governor.types import TurnState
from governor.wire.sse import SseEvent, SseSplitter
from tests.harness import Governed, governed
from tests.twin_server import WEATHER, Running, small_machine, twin_server

TEXT = "Grüße aus 東京, 你好 世界! 🎉👩‍🚀 One line.\n\nAnother  one, with 数字 and ünïcödé.\n"
CALL = {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}
EAGER = """
[slices]
quantum_s = 0.05
yield_after_s = 0.05
[stream]
keepalive_after_s = 0.1
keepalive_every_s = 0.1
"""
HOG: dict[str, Any] = {
    "reasoning": TEXT * 2,
    "text": TEXT * 15,
    "calls": [CALL],
}


def wished(content: str, **twin: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny-hybrid", "messages": messages, "tools": [WEATHER], "custom_params": {"twin": twin}}


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    """With room for one turn at a time."""
    async with twin_server(small_machine(max_running_requests=1), speed=6) as running:
        yield running


@pytest.fixture
async def gateway(twin: Running, tmp_path: Path) -> AsyncIterator[Governed]:
    policies = {"alice": EAGER, "bob": EAGER}
    async with governed(twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob"), policies=policies) as gov:
        yield gov
        await gov.assert_idle()
        await twin.until_idle()


class Stream:
    """A client's stream, read in the background."""

    def __init__(self, gateway: Governed, agent: str, body: dict[str, Any]) -> None:
        self._gateway, self._agent, self._body = gateway, agent, body
        self.events: list[SseEvent] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        splitter = SseSplitter()
        body = self._body | {"stream": True}
        async with (
            self._gateway.client(self._agent) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                self.events += splitter.feed(chunk)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(each.data) for each in self.events if each.data not in (None, b"[DONE]")]

    async def until_it_shows(self, count: int = 3) -> None:
        async with asyncio.timeout(10):
            while len(self.chunks) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices", ())]

    @property
    def calls(self) -> list[Any]:
        return [call for choice in self.choices for call in choice["delta"].get("tool_calls") or ()]

    def said(self, field: str) -> str:
        return "".join(choice["delta"].get(field) or "" for choice in self.choices)


BODY = wished("Tell me.", **HOG)
OTHER = wished("And me?", reasoning="", text=TEXT * 6, calls=[])


class Pair:
    """A long answer of alice's that is paused, and the one of bob's that it was paused for."""

    def __init__(self, hog: Stream, other: Stream) -> None:
        self.hog = hog
        self.other = other


async def paused_pair(gateway: Governed, body: dict[str, Any] = BODY) -> Pair:
    hog = Stream(gateway, "alice", body)
    await hog.until_it_shows()
    other = Stream(gateway, "bob", OTHER)
    async with asyncio.timeout(10):
        while not any(turn.phase == "paused" for turn in (await gateway.snapshot()).turns):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return Pair(hog, other)


async def test_a_stream_makes_room_and_is_whole(gateway: Governed) -> None:
    hog = Stream(gateway, "alice", wished("Tell me.", **HOG))
    await hog.until_it_shows()
    for number in range(3):
        small = await gateway.chat("bob", **wished(f"Quick {number}", reasoning="", text=TEXT * 2, calls=[]))
        assert small.raise_for_status().json()["choices"][0]["message"]["content"].strip() == (TEXT * 2).strip()
    await hog.task
    alone = Stream(gateway, "alice", wished("Tell me.", **HOG))
    await alone.task
    for field in ("reasoning_content", "content"):
        assert hog.said(field) == alone.said(field)
    assert hog.said("content").strip() == HOG["text"].strip()
    assert hog.calls == alone.calls != []
    assert hog.events[-1].data == b"[DONE]"
    assert any(event.is_comment for event in hog.events)  # kept alive while it was paused
    first, *_, again = await gateway.ends()
    assert (first.state, first.finish_reason) == (TurnState.OK, "tool_calls")
    assert first.pieces is not None
    assert first.pieces >= 3
    assert first.paused_ms is not None
    assert first.paused_ms > 0
    assert (again.pieces, again.paused_ms) == (1, 0)
    assert first.usage.completion_tokens == again.usage.completion_tokens
    assert first.usage.reasoning_tokens == again.usage.reasoning_tokens
    assert first.usage.prompt_tokens == again.usage.prompt_tokens
    happened = [each.event for each in gateway.governor.events.since(0)]
    pauses = [each for each in happened if isinstance(each, events.TurnPaused) and each.turn_id == first.turn_id]
    resumed = [each for each in happened if isinstance(each, events.TurnResumed) and each.turn_id == first.turn_id]
    assert len(pauses) == len(resumed) == first.pieces - 1
    assert sum(each.paused_ms for each in resumed) == pytest.approx(first.paused_ms, abs=0.1)
    assert pauses[0].reason.startswith("bob has waited")


async def test_an_owner_sees_who_is_paused_and_for_whom(gateway: Governed) -> None:
    pair = await paused_pair(gateway)
    turns = {turn.agent: turn for turn in (await gateway.snapshot()).turns}
    assert (turns["alice"].phase, turns["bob"].phase) == ("paused", "prefill") or turns["bob"].phase == "decode"
    assert (turns["alice"].waits_for or "").startswith("bob has waited")
    await asyncio.gather(pair.hog.task, pair.other.task)


async def test_a_plain_answer_makes_room_and_is_the_engines_own(gateway: Governed, twin: Running) -> None:
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["alice"], max_retries=0)
    asked = {name: BODY[name] for name in ("model", "messages", "tools")}
    extra = {"custom_params": BODY["custom_params"]}
    running = asyncio.create_task(client.chat.completions.create(**asked, extra_body=extra))
    await asyncio.sleep(0.3)
    other = Stream(gateway, "bob", OTHER)
    answer = await running
    await other.task
    await client.close()
    direct = (await twin.post("/v1/chat/completions", **BODY)).json()
    (choice,), (wanted,) = answer.choices, direct["choices"]
    assert choice.finish_reason == wanted["finish_reason"] == "tool_calls"
    got = msgspec.json.decode(answer.model_dump_json(exclude_unset=True))
    assert got["choices"][0] == wanted
    assert answer.usage is not None
    for name in ("prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens"):
        assert got["usage"][name] == direct["usage"][name]
    assert got.keys() == direct.keys() - {"metadata"}
    end, _ = await gateway.ends()
    assert end.pieces is not None
    assert end.pieces >= 2
    assert "stream" in end.edits


@pytest.mark.parametrize("more", [{"logprobs": True}, {"stop": ["never"]}], ids=["logprobs", "stop"])
async def test_what_must_be_one_generation_is_left_alone(more: dict[str, Any], gateway: Governed) -> None:
    hog = Stream(gateway, "alice", wished("Tell me.", reasoning="", text=TEXT * 3, calls=[]) | more)
    await hog.until_it_shows()
    other = Stream(gateway, "bob", OTHER)
    await asyncio.gather(hog.task, other.task)
    assert [end.pieces for end in await gateway.ends()] == [1, 1]


async def test_a_client_that_leaves_while_it_is_paused_leaves_nothing(gateway: Governed) -> None:
    pair = await paused_pair(gateway)
    pair.hog.task.cancel()
    await pair.other.task
    hog, other = await gateway.ends()
    assert (hog.state, hog.pieces) == (TurnState.CLIENT_ABORTED, 1)
    assert hog.paused_ms is not None
    assert hog.paused_ms > 0
    assert other.state is TurnState.OK


async def test_a_policy_that_is_changed_meanwhile_changes_nothing(gateway: Governed) -> None:
    pair = await paused_pair(gateway)
    (gateway.home.policies / "alice.toml").write_text("[slices]\nenabled = false\n")
    await asyncio.gather(pair.hog.task, pair.other.task)
    assert pair.hog.said("content").strip() == HOG["text"].strip()
    assert (await gateway.ends())[0].state is TurnState.OK


async def test_a_governor_that_stops_tells_a_paused_client(gateway: Governed) -> None:
    pair = await paused_pair(gateway, wished("Tell me.", reasoning="", text=TEXT * 200, calls=[]))
    gateway.stop()
    done, _ = await asyncio.wait({pair.hog.task, pair.other.task}, timeout=30)
    assert pair.hog.task in done
    assert pair.hog.chunks[-1]["error"]["message"] == "The governor is stopping."
    assert (await gateway.ends())[0].state is TurnState.INTERRUPTED


@pytest.mark.parametrize(
    "fault",
    [{"kind": "cut", "after_tokens": 3}, {"kind": "error_frame", "after_tokens": 3}, {"kind": "http_error"}],
    ids=["cut", "error", "refused"],
)
async def test_an_engine_that_fails_in_a_later_piece_is_told(
    fault: dict[str, Any], gateway: Governed, twin: Running
) -> None:
    pair = await paused_pair(gateway)
    (await twin.client.put("/twin/faults", json=[fault | {"times": 1}])).raise_for_status()
    await asyncio.gather(pair.hog.task, pair.other.task)
    assert pair.hog.chunks[-1]["error"]
    assert not any(choice["finish_reason"] for choice in pair.hog.choices)
    assert f"{HOG['reasoning']}\n".startswith(pair.hog.said("reasoning_content"))
    hog, other = await gateway.ends()
    assert (hog.state, other.state) == (TurnState.UPSTREAM_ERROR, TurnState.OK)


async def test_an_engine_that_dies_meanwhile_is_told(tmp_path: Path) -> None:
    policies = {"alice": EAGER, "bob": EAGER}
    async with AsyncExitStack() as engine:
        twin = await engine.enter_async_context(twin_server(small_machine(max_running_requests=1), speed=2))
        async with governed(
            twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob"), policies=policies
        ) as gateway:
            pair = await paused_pair(gateway)
            await engine.aclose()
            await asyncio.wait({pair.hog.task, pair.other.task}, timeout=30)
            assert pair.hog.chunks[-1]["error"]
            hog = (await gateway.ends())[0]
            assert hog.state is TurnState.UPSTREAM_ERROR
            await gateway.assert_idle()


async def test_a_lost_abort_costs_the_client_nothing(gateway: Governed, twin: Running) -> None:
    (await twin.client.put("/twin/faults", json=[{"kind": "lost_abort"}])).raise_for_status()
    hog = Stream(gateway, "alice", wished("Tell me.", reasoning=TEXT, text=TEXT, calls=[CALL]))
    await hog.until_it_shows()
    other = Stream(gateway, "bob", OTHER)
    await asyncio.gather(hog.task, other.task)
    assert (hog.said("reasoning_content").strip(), hog.said("content").strip()) == (TEXT.strip(), TEXT.strip())
    assert hog.calls
    assert [end.state for end in await gateway.ends()] == [TurnState.OK, TurnState.OK]
    (await twin.client.put("/twin/faults", json=[])).raise_for_status()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token_is_an_http_error(stream: bool, gateway: Governed, twin: Running) -> None:
    fault = {"kind": "http_error", "status": 500, "message": "no", "times": 1}
    (await twin.client.put("/twin/faults", json=[fault])).raise_for_status()
    answer = await gateway.chat("alice", **BODY, stream=stream)
    assert (answer.status_code, "no" in answer.text) == (500, True)

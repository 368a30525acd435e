"""A conversation goes on from the tokens that the engine wrote, whatever its client made of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from governor.store.model import TurnClosed
from governor.types import TurnState
from governor.wire.sse import SseSplitter
from governor.wire.whole import Whole
from tests.conversing import Client, Hermes, OpenClaw
from tests.harness import Governed, governed
from tests.twin_server import WEATHER, Running, small_machine, twin_server

EXACT = '[request]\nhistory = "exact"\n'
BOUNDED = EXACT + "history_thinking_tokens = 150\n"
SYSTEM = "You are careful. " * 60
CALL = {"name": "get_weather", "arguments": {"days": 3, "city": "Zürich <b> & 東京"}}
THOUGHT = "The user wants to know of the weather, so I look it up, place by place. " * 10
SAID = "  Let me look that up, since I cannot know it.\n\n" * 12
PAGE, INTERVAL = 64, 256
WISHES: list[dict[str, Any]] = [
    {"reasoning": THOUGHT, "text": SAID, "calls": [CALL]},
    {"reasoning": THOUGHT, "text": SAID, "calls": [CALL, CALL]},
    {"reasoning": THOUGHT, "text": SAID, "calls": []},
    {"reasoning": THOUGHT, "text": "Done.", "calls": []},
]
"""Two steps with tools, an answer, and one to a new question."""


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    async with twin_server(small_machine()) as running:
        yield running


@pytest.fixture
async def gateway(twin: Running, tmp_path: Path) -> AsyncIterator[Governed]:
    """Alice's history is exact, bob's as sent, carol's exact with little thinking."""
    policies = {"alice": EXACT, "carol": BOUNDED, "dave": EXACT + "[slices]\nenabled = false\n"}
    agents = ("alice", "bob", "carol", "dave")
    async with governed(twin.url, tmp_path, engine_kind="sglang", agents=agents, policies=policies) as gov:
        yield gov
        await gov.assert_idle()
        await twin.until_idle()


async def told(gateway: Governed, agent: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The answer's message, as a client puts it together."""
    if not stream:
        answer = (await gateway.chat(agent, **body)).raise_for_status().json()
        return dict(answer["choices"][0]["message"])
    whole, splitter = Whole(), SseSplitter()
    async with (
        gateway.client(agent) as client,
        client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer,
    ):
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            for event in splitter.feed(chunk):
                if event.data is not None:
                    whole.on_data(event.data)
    return dict(msgspec.json.decode(whole.body())["choices"][0]["message"])


def body_of(client: Client, wish: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "tiny-hybrid",
        "messages": client.messages,
        "tools": [WEATHER],
        "max_tokens": 1000,
        "custom_params": {"twin": wish},
    }


async def converse(gateway: Governed, agent: str, client: Client, *, stream: bool = True) -> list[TurnClosed]:
    """Four turns; their ends."""
    client.ask("How is the weather?")
    for number, wish in enumerate(WISHES):
        client.on_answer(await told(gateway, agent, body_of(client, wish), stream=stream))
        if number == 2:
            client.ask("And now?")
    return await gateway.ends()


def recomputed(before: TurnClosed, turn: TurnClosed) -> int:
    """Tokens of the turn before, prompt and output, that were computed once more."""
    usage, was = turn.usage, before.usage
    assert None not in (usage.cached_tokens, was.prompt_tokens, was.completion_tokens)
    return (was.prompt_tokens or 0) + (was.completion_tokens or 0) - (usage.cached_tokens or 0)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("client", [Hermes, OpenClaw])
async def test_what_was_written_is_not_computed_again(client: type[Client], stream: bool, gateway: Governed) -> None:
    ends = await converse(gateway, "alice", client(SYSTEM), stream=stream)
    assert [end.state for end in ends] == [TurnState.OK] * 4
    assert [end.flags for end in ends] == [()] * 4
    assert "restored" not in str(ends[0].edits)
    for before, turn in pairwise(ends):
        assert f"history restored: +{before.usage.completion_tokens} tokens" in turn.edits
        assert recomputed(before, turn) <= PAGE + INTERVAL
        assert turn.prompt_tokens_counted == turn.usage.prompt_tokens
        assert turn.prompt_tokens_margin == 0


@pytest.mark.parametrize("client", [Hermes, OpenClaw])
async def test_as_sent_it_is(client: type[Client], gateway: Governed) -> None:
    ends = await converse(gateway, "bob", client(SYSTEM))
    assert not [end for end in ends if "restored" in str(end.edits) or end.flags]
    assert all((end.usage.completion_tokens or 0) > 300 for end in ends[:3])
    lost = [recomputed(before, turn) for before, turn in pairwise(ends)]
    assert lost[2] > PAGE + INTERVAL  # at a new question the template drops what was thought for the last one
    if client is Hermes:
        assert min(lost) > PAGE + INTERVAL


async def test_it_needs_no_slices(gateway: Governed) -> None:
    ends = await converse(gateway, "dave", Hermes(SYSTEM))
    assert all("history restored" in str(end.edits) for end in ends[1:])


async def test_too_much_thinking_is_dropped_once(gateway: Governed) -> None:
    ends = await converse(gateway, "carol", Hermes(SYSTEM))
    thought = [end.usage.reasoning_tokens or 0 for end in ends]
    assert min(thought[:3]) > 150
    for before, turn in pairwise(ends):
        assert "restored" not in str(turn.edits)
        wanted = f"history_as_sent: {before.usage.reasoning_tokens} tokens of thinking, more than 150"
        assert turn.flags == (wanted,)


@pytest.mark.parametrize("lie", ["content", "arguments", "name", "one call less", "before"])
async def test_a_client_that_changed_its_answer_is_taken_at_its_word(lie: str, gateway: Governed) -> None:
    client = Hermes(SYSTEM)
    client.ask("How is the weather?")
    client.on_answer(await told(gateway, "alice", body_of(client, WISHES[1]), stream=True))
    answer = client.history[2]
    if lie == "content":
        answer["content"] += " It snows."
    elif lie == "arguments":
        answer["tool_calls"][0]["function"]["arguments"] = '{"city":"Oslo","days":3}'
    elif lie == "name":
        answer["tool_calls"][0]["function"]["name"] = "get_wether"
    elif lie == "one call less":
        del answer["tool_calls"][1], client.history[4]
    else:
        client.history[1]["content"] = "How is it?"
    await told(gateway, "alice", body_of(client, WISHES[2]), stream=True)
    first, second = await gateway.ends()
    assert "restored" not in str(second.edits)
    (flag,) = second.flags
    assert flag.startswith("history_as_sent: ")
    assert second.usage.prompt_tokens is not None
    assert first.state is second.state is TurnState.OK


async def test_an_answer_is_not_robbed_of_its_room(gateway: Governed) -> None:
    client = Hermes(SYSTEM)
    client.ask("How is the weather?")
    client.on_answer(await told(gateway, "alice", body_of(client, WISHES[0]), stream=True))
    await told(gateway, "alice", body_of(client, WISHES[3]) | {"max_tokens": 7300}, stream=True)
    _, second = await gateway.ends()
    (flag,) = second.flags
    assert flag.endswith("tokens leave the answer too little room")
    assert (second.state, second.cap_applied) == (TurnState.OK, 7300)


async def test_what_the_engine_refuses_is_not_tried_again(gateway: Governed, twin: Running) -> None:
    client = Hermes(SYSTEM)
    client.ask("How is the weather?")
    client.on_answer(await told(gateway, "alice", body_of(client, WISHES[0]), stream=True))
    refused = {"kind": "http_error", "status": 400, "message": "no", "every": 1, "times": 1}
    await twin.client.put("/twin/faults", json=[refused])
    answer = await gateway.chat("alice", **body_of(client, WISHES[3]))
    assert answer.status_code == 400
    await told(gateway, "alice", body_of(client, WISHES[3]), stream=True)
    _, second, third = await gateway.ends()
    assert "history restored" in str(second.edits)
    assert third.flags == ("history_as_sent: the answer before was not kept",)
    assert third.state is TurnState.OK


async def test_an_answer_that_was_paused_is_gone_on_from_as_a_whole(tmp_path: Path) -> None:
    eager = EXACT + "[slices]\nquantum_s = 0.05\nyield_after_s = 0.05\n"
    async with (
        twin_server(small_machine(max_running_requests=1), speed=6) as twin,
        governed(
            twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob"), policies={"alice": eager, "bob": eager}
        ) as gov,
    ):
        client = Hermes(SYSTEM)
        client.ask("How is the weather?")
        wish = {"reasoning": THOUGHT, "text": SAID * 4, "calls": []}
        answer = asyncio.create_task(told(gov, "alice", body_of(client, wish), stream=True))
        async with asyncio.timeout(10):
            while not any(turn.phase == "decode" for turn in (await gov.snapshot()).turns):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await told(gov, "bob", body_of(Hermes("Be quick."), WISHES[3]) | {"max_tokens": 8}, stream=False)
        client.on_answer(await answer)
        client.ask("And now?")
        await told(gov, "alice", body_of(client, WISHES[3]), stream=True)
        first, _, second = await gov.ends()
        await gov.assert_idle()
    assert first.pieces is not None
    assert first.pieces > 1
    assert f"history restored: +{first.usage.completion_tokens} tokens" in second.edits
    assert recomputed(first, second) <= PAGE + INTERVAL


@pytest.mark.parametrize("ends", ["cut", "client leaves"])
async def test_an_answer_that_broke_off_is_not_kept(ends: str, gateway: Governed, twin: Running) -> None:
    client = Hermes(SYSTEM)
    client.ask("How is the weather?")
    body = body_of(client, WISHES[2]) | {"stream": True}
    if ends == "cut":
        await twin.client.put("/twin/faults", json=[{"kind": "cut", "after_tokens": 30, "every": 1}])
    async with gateway.client("alice") as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
        with contextlib.suppress(httpx.HTTPError):
            async for _ in answer.aiter_bytes():
                if ends != "cut":
                    break
    await gateway.assert_idle()
    assert gateway.governor.history.book.answers() == []


async def test_the_model_reads_the_very_tokens(gateway: Governed, twin: Running) -> None:
    """What it is given is the prompt before, its own answer, and what the template makes of the new messages."""
    client = OpenClaw(SYSTEM)
    client.ask("How is the weather?")
    first = body_of(client, WISHES[0])
    client.on_answer(await told(gateway, "alice", first, stream=True))
    (kept,) = gateway.governor.history.book.answers()
    prompt = (await twin.post("/tokenize", **first)).json()["tokens"]
    assert list(kept.ids[: len(prompt)]) == prompt
    second = body_of(client, WISHES[2])
    as_sent = (await twin.post("/tokenize", **second)).json()["tokens"]
    await told(gateway, "alice", second, stream=True)
    _, later = gateway.governor.history.book.answers()
    given = list(later.ids[: -later.output_tokens])
    assert given[: len(kept.ids)] == list(kept.ids)
    tail = given[len(kept.ids) :]
    assert as_sent[-len(tail) :] == tail
    assert as_sent[-len(tail) - 1] == kept.ids[-1]  # the end of the answer

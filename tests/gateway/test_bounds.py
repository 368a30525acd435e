"""Reasoning that has used up its budget is closed and an answer follows; an answer that repeats itself is ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from governor.gateway.bounds import Bounds
from governor.store.model import TurnClosed
from governor.types import TurnState
from governor.wire.sse import SseSplitter
from serve.engines.sglang import Sglang
from serve.scripted.behaviour import Behaviour, Knobs, ScriptedCall
from serve.scripted.engine import ScriptedEngine
from serve.twin_server.pieces import encode
from tests.harness import Governed, governed
from tests.pausing import Played, call_of, play
from tests.twin_server import WEATHER, Running, twin_server

SPEED = 4.0
"""It would take half a minute to write :data:`LONG`, which a busy machine does not wait to stop it."""
FEW = 8
"""Text that is counted in parts may seem a token a part longer than it is."""
CLOSING = len(encode("\n</think>\n\n"))
LONG = "".join(f"Step {number}: 東京 is {number * 37 % 101} ünits away, so we go on. " for number in range(330))
LOOP = "And so on and on. "
CALL = {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


def wished(**twin: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "Tell me."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 6000,
        "custom_params": {"twin": twin},
    }


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    async with twin_server(speed=SPEED) as running:
        yield running


@pytest.fixture
async def engine(twin: Running) -> AsyncIterator[Sglang]:
    adapter = Sglang(twin.url)
    yield adapter
    await twin.until_idle()
    await adapter.aclose()


def bounds(thinking: int | None = None, loop_chars: int = 0) -> Bounds:
    return Bounds(thinking_tokens=thinking, loop_chars=loop_chars)


def closed_at(played: Played) -> int:
    """Tokens, as its flag says."""
    (flag,) = [flag for flag in played.told.flags if flag.startswith("thinking_closed: ")]
    return int(flag.split()[2])


def assert_closed(played: Played, budget: int) -> None:
    """One stream with one end, its figures true, and its reasoning cut off."""
    view, tokens = played.seen, closed_at(played)
    assert tokens >= budget - FEW  # how much above is up to the machine; the rule has tests of its own
    assert LONG.startswith(view.reasoning)
    assert abs(len(encode(view.reasoning)) - tokens) <= 1  # cut in a token, it may take another to write
    assert (view.roles, view.dones, len(view.ids), len(view.finishes)) == (1, 1, 1, 1)
    (usage,) = view.usage
    assert usage["completion_tokens_details"]["reasoning_tokens"] == tokens + CLOSING
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("budget", [0, 1, 40, 200])
async def test_thinking_is_closed_at_its_budget(budget: int, engine: Sglang) -> None:
    call = call_of(engine, wished(reasoning=LONG, text="So it is."))
    played = await play(engine, call, bounds=bounds(budget))
    assert_closed(played, budget)
    (usage,) = played.seen.usage
    assert (played.seen.content, played.seen.finishes) == ("So it is.", ["stop"])
    assert usage["completion_tokens"] == closed_at(played) + CLOSING + len(encode("So it is.")) + 1
    assert (played.told.went_on, played.pauses, played.scheduler.claims) == (1, 0, [])


async def test_a_budget_that_is_not_used_up_changes_nothing(engine: Sglang) -> None:
    body = wished(reasoning=LONG[:600], text=LONG[:1500])
    whole = await play(engine, call_of(engine, body))
    bounded = await play(engine, call_of(engine, body), bounds=bounds(1000, 4000))
    assert (bounded.seen.reasoning, bounded.seen.content) == (whole.seen.reasoning, whole.seen.content)
    assert (bounded.told.went_on, bounded.told.flags) == (0, [])


async def test_calls_follow_a_closed_thinking(engine: Sglang) -> None:
    body = wished(reasoning=LONG, text="Let us see.", calls=[CALL]) | {"tools": [WEATHER]}
    body["custom_params"]["twin"].pop("text")
    played = await play(engine, call_of(engine, body), bounds=bounds(200))
    assert_closed(played, 200)
    ((_, name, arguments),) = played.seen.calls.values()
    assert (name, msgspec.json.decode(arguments)) == ("get_weather", CALL["arguments"])
    assert played.seen.finishes == ["tool_calls"]


async def test_pauses_count_towards_the_budget(engine: Sglang) -> None:
    body = wished(reasoning=LONG, text="So it is.")
    for moments in ([0], [0, 5], [0, 5, 20]):
        played = await play(engine, call_of(engine, body), moments, bounds=bounds(150))
        assert_closed(played, 150)
        assert played.seen.content == "So it is."
        assert 1 <= played.pauses <= len(moments)  # the budget may be used up first
        assert played.pauses + played.told.went_on >= 2
        assert all(claim is not None for claim in played.scheduler.claims)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_pause_may_come_at_any_moment_about_the_end_of_the_budget(whole: bool, engine: Sglang) -> None:
    body = wished(reasoning=LONG, text="So it is. " + LONG[:300])
    call = call_of(engine, body)
    events = (await play(engine, call, bounds=bounds(60))).seen.events
    both = 0
    for moment in range(0, events if not whole else 1, max(1, events // 12)):
        played = await play(engine, call, [moment], bounds=bounds(60), whole=whole)
        if whole:
            message = msgspec.json.decode(played.raw)["choices"][0]["message"]
            shown = (message["reasoning_content"], message["content"])
        else:
            assert_closed(played, 60)
            shown = (played.seen.reasoning, played.seen.content)
        assert LONG.startswith(shown[0])
        assert shown[1] == "So it is. " + LONG[:300]
        assert closed_at(played) >= 60 - FEW
        assert played.told.resumed == played.pauses
        both += played.pauses
    assert both or whole


async def test_a_cap_that_leaves_no_room_behind_the_thinking_ends_the_answer(engine: Sglang) -> None:
    body = wished(reasoning=LONG, text="So it is.") | {"max_tokens": 202}
    played = await play(engine, call_of(engine, body), bounds=bounds(200))
    (usage,) = played.seen.usage
    assert (played.seen.finishes, played.seen.content, played.seen.dones) == (["length"], "", 1)
    assert usage["completion_tokens"] <= 202


async def test_a_loop_ends_the_answer(engine: Sglang) -> None:
    played = await play(
        engine, call_of(engine, wished(text=LONG[:500] + LOOP * 600) | PLAIN), bounds=bounds(None, 1000)
    )
    view = played.seen
    assert (view.finishes, view.dones, view.roles) == (["length"], 1, 1)
    assert (LONG[:500] + LOOP * 600).startswith(view.content)
    assert 1500 <= len(view.content) <= 6000
    (usage,) = view.usage
    assert usage["completion_tokens"] >= len(encode(view.content))
    (flag,) = played.told.flags
    assert flag.startswith("loop: '")
    assert flag.endswith("' x 55")


async def test_a_loop_in_a_calls_arguments_ends_the_answer(engine: Sglang) -> None:
    """The engine shows an argument when it is complete, so what is not shown is those behind it."""
    call = {"name": "get_weather", "arguments": {f"city {number}": LOOP * 100 for number in range(12)}}
    body = wished(calls=[call]) | PLAIN | {"tools": [WEATHER]}
    played = await play(engine, call_of(engine, body), bounds=bounds(None, 1000))
    ((_, name, arguments),) = played.seen.calls.values()
    assert (name, played.seen.finishes, played.seen.dones) == ("get_weather", ["length"], 1)
    assert len(arguments) < 6 * len(LOOP * 100)
    assert played.told.flags[0].startswith("loop: ")


async def test_a_loop_of_reasoning_is_closed_once_and_an_answer_follows(engine: Sglang) -> None:
    body = wished(reasoning=LOOP * 600, text="So it is.")
    played = await play(engine, call_of(engine, body), bounds=bounds(None, 1000))
    assert (played.seen.content, played.seen.finishes) == ("So it is.", ["stop"])
    assert 1000 <= len(played.seen.reasoning) < 6000
    assert [flag.partition(":")[0] for flag in played.told.flags] == ["loop", "thinking_closed"]
    body = wished(reasoning=LOOP * 600, text="Well. " * 2000)
    played = await play(engine, call_of(engine, body), bounds=bounds(None, 1000))
    assert played.seen.finishes == ["length"]
    assert 1000 <= len(played.seen.content) < 6000
    assert [flag.partition(":")[0] for flag in played.told.flags] == ["loop", "thinking_closed", "loop"]


POLICY = """
[output]
tool_step = 6000
final = 6000
thinking = {thinking}
loop_chars = {loop_chars}
[slices]
enabled = {slices}
"""


@asynccontextmanager
async def gateway(root: Path, *, slices: bool = True, loop_chars: int = 1000) -> AsyncIterator[Governed]:
    policy = POLICY.format(thinking=200, loop_chars=loop_chars, slices=str(slices).lower())
    async with (
        twin_server(speed=8) as twin,
        governed(twin.url, root, engine_kind="sglang", policies={"alice": policy}) as gov,
    ):
        yield gov


async def ask(gov: Governed, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    """The events' data, which must end in order; or the one plain answer."""
    async with gov.client() as client:
        answer = (await client.post(path, json={"model": "tiny-hybrid"} | body)).raise_for_status()
    if not body.get("stream"):
        return [answer.json()]
    events = [event.data for event in SseSplitter().feed(answer.content) if event.data is not None]
    assert (events[-1], events.count(b"[DONE]")) == (b"[DONE]", 1)
    return [msgspec.json.decode(data) for data in events[:-1]]


async def end_of(gov: Governed) -> TurnClosed:
    await gov.assert_idle()
    return (await gov.ends())[-1]


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_gateway_closes_thinking(stream: bool, slices: bool, tmp_path: Path) -> None:
    body = wished(reasoning=LONG, text="So it is.") | {"model": "tiny-hybrid", "stream": stream}
    if not stream:
        del body["stream_options"]
    async with gateway(tmp_path, slices=slices) as gov:
        events = await ask(gov, body)
        shown = [
            event["choices"][0].get("delta") or event["choices"][0]["message"] for event in events if event["choices"]
        ]
        end = await end_of(gov)
    assert "".join(each.get("content") or "" for each in shown) == "So it is."
    reasoning = "".join(each.get("reasoning_content") or "" for each in shown)
    assert LONG.startswith(reasoning)
    assert (end.state, end.pieces, end.finish_reason) == (TurnState.OK, 2, "stop")
    (flag,) = end.flags
    tokens = int(flag.removeprefix("thinking_closed: at ").removesuffix(" tokens"))
    assert tokens >= 200 - FEW
    assert end.usage.reasoning_tokens == tokens + CLOSING


async def test_the_gateway_ends_a_loop_with_true_usage(tmp_path: Path) -> None:
    """In pieces, in one generation (with a stop text), and as a text completion."""
    looped = {"twin": {"text": LOOP * 600}}
    whole = wished(text=LOOP * 600) | PLAIN | {"model": "tiny-hybrid"}
    text = {"prompt": "Tell me.", "stream": True, "max_tokens": 6000, "custom_params": looped}
    async with gateway(tmp_path) as gov:
        for body, path in (
            (whole, "/v1/chat/completions"),
            (whole | {"stop": ["never"]}, "/v1/chat/completions"),
            (text, "/v1/completions"),
        ):
            events = await ask(gov, body, path)
            finishes = [choice["finish_reason"] for event in events for choice in event["choices"]]
            assert [finish for finish in finishes if finish] == ["length"]
            end = await end_of(gov)
            assert (end.state, end.finish_reason) == (TurnState.TRUNCATED, "length")
            assert end.flags[0].startswith("loop: '")
            assert end.usage.completion_tokens is not None
            assert 100 < end.usage.completion_tokens < 2500
            told = [event["usage"] for event in events if event.get("usage")]
            assert [usage["completion_tokens"] for usage in told] == [end.usage.completion_tokens] * len(told)
            assert len(told) == (path == "/v1/chat/completions")
        plain = whole | {"stream": False}
        del plain["stream_options"]
        (answer,) = await ask(gov, plain)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (await end_of(gov)).flags[0].startswith("loop: '")


async def test_nothing_is_ended_where_that_is_switched_off(tmp_path: Path) -> None:
    async with gateway(tmp_path, loop_chars=0) as gov:
        events = await ask(gov, wished(text=LOOP * 100) | PLAIN | {"model": "tiny-hybrid"})
        end = await end_of(gov)
    assert (
        "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]) == LOOP * 100
    )
    assert (end.state, end.flags) == (TurnState.OK, ())


LOOPS = [
    Behaviour(say=LOOP * 2000),
    Behaviour(reasoning=LOOP * 2000, say="So it is."),
    Behaviour(calls=(ScriptedCall("get_weather", {"city": LOOP * 2000}),)),
]


@pytest.mark.parametrize("behaviour", LOOPS, ids=["text", "reasoning", "call"])
async def test_an_engine_that_cannot_go_on_is_left(behaviour: Behaviour, tmp_path: Path) -> None:
    """Its usage is not known then, and none is made up. 4,000 characters is what a policy has by itself."""
    async with (
        ScriptedEngine(behaviour, knobs=Knobs(model="m", decode_tokens_per_s=5000)) as engine,
        governed(engine.url, tmp_path, policies={"alice": "[output]\ntool_step = 100000\nfinal = 100000\n"}) as gov,
    ):
        async with openai.AsyncOpenAI(base_url=gov.url + "/v1", api_key=gov.keys["alice"]) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], tools=[WEATHER], stream=True
            )
            chunks = [chunk async for chunk in stream]
        end = await end_of(gov)
        await engine.wait_idle()
    shown = "".join(
        (choice.delta.content or "")
        + (getattr(choice.delta, "reasoning_content", None) or "")
        + "".join(call.function.arguments or "" for call in choice.delta.tool_calls or () if call.function)
        for chunk in chunks
        for choice in chunk.choices
    )
    assert 4000 <= len(shown) < 6000
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    assert not any(chunk.usage for chunk in chunks)
    assert (end.state, end.finish_reason, end.usage.completion_tokens) == (TurnState.TRUNCATED, "length", None)
    assert (end.completion_tokens_estimated or 0) > 500
    (flag,) = end.flags[:1]
    assert flag.startswith("loop: '")


async def test_an_answer_that_ends_as_its_loop_is_found_has_ended_by_itself(tmp_path: Path) -> None:
    choice = {"index": 0, "delta": {"content": LOOP * 400}, "finish_reason": "stop"}
    script = [
        {"status": 200, "headers": {"content-type": "text/event-stream"}},
        {"sse": {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}},
        {"data": "[DONE]"},
    ]
    async with ScriptedEngine(script, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as gov:
        events = await ask(gov, {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        end = await end_of(gov)
    assert [event["choices"][0]["finish_reason"] for event in events] == ["stop"]
    assert (end.state, end.flags) == (TurnState.OK, ())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_dialects_whose_end_tells_tokens_are_left_alone(path: str, tmp_path: Path) -> None:
    async with (
        ScriptedEngine(Behaviour(say=LOOP * 600), knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path) as gov,
    ):
        asked = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
        async with gov.client() as client:
            body = {"model": "m", "stream": True, "max_tokens": 8000} | asked
            answer = (await client.post(path, json=body)).raise_for_status()
        end = await end_of(gov)
    assert answer.text.count(LOOP.split()[1]) >= 600
    assert (end.state, end.flags) == (TurnState.OK, ())

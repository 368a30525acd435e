"""The model brings back what left its prompt, within its turn, and the client sees one answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from governor.compress.recall import MOST_RECALLS, NAME, TOOL
from governor.types import TurnState
from serve.scripted import Behaviour, Knobs, ScriptedCall, ScriptedEngine
from tests.harness import Governed, governed
from tests.recalling import POLICY, TEXT, handle, keep, recall, request, results, sent, streamed
from tests.tool_loop import ToolLoop
from tests.twin_server import WEATHER

SAYS = Behaviour(say="It is 7143.")
AGENTS = ("alice", "bob")
HANDLE = re.compile(r"gov-[0-9a-f]{16}")
Rig = Callable[..., AbstractAsyncContextManager[tuple[Governed, ScriptedEngine]]]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    homes = count()

    @asynccontextmanager
    async def started(
        *answers: Any, policy: str = POLICY, **knobs: Any
    ) -> AsyncIterator[tuple[Governed, ScriptedEngine]]:
        home = tmp_path / str(next(homes))
        async with (
            ScriptedEngine(*answers, knobs=Knobs(model="m", **knobs)) as engine,
            governed(engine.url, home, agents=AGENTS, policies=dict.fromkeys(AGENTS, policy)) as gateway,
        ):
            yield gateway, engine
            await gateway.assert_idle()

    return started


async def test_a_stream_goes_on_behind_a_recall(rig: Rig) -> None:
    async with rig(recall(handle(), say="Let me see.", reasoning="Hm."), SAYS) as (gateway, engine):
        keep(gateway)
        played = await streamed(gateway)
        seen = played.seen
        assert (seen.content, seen.reasoning) == ("Let me see.\n\nIt is 7143.", "Hm.")
        assert (seen.roles, seen.dones, len(seen.ids), seen.finishes, seen.calls) == (1, 1, 1, ["stop"], {})
        assert NAME.encode() not in played.raw
        assert results(engine) == [TEXT]
        first, second = (sent(engine, number) for number in (0, 1))
        assert second["messages"][:1] == first["messages"]
        assert second["tools"] == first["tools"]
        own = second["messages"][1]
        assert (own["content"], own["reasoning_content"]) == ("Let me see.", "Hm.")
        assert own["tool_calls"][0]["id"] == second["messages"][2]["tool_call_id"]
        (usage,) = seen.usage
        end = (await gateway.ends())[-1]
        assert end.state is TurnState.OK
        assert end.pieces == 2
        assert "recall tool" in end.edits
        assert [flag.partition(":")[0] for flag in end.flags] == ["recalled", "recall_prompt"]
        assert end.flags[0].startswith(f"recalled: {handle()}, ")
        assert usage["prompt_tokens"] == end.usage.prompt_tokens
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_what_was_really_taken_out_comes_back(rig: Rig) -> None:
    """A long conversation is made shorter, and the model reads a result again by the handle in its prompt."""

    async def shortened(gateway: Governed) -> ToolLoop:
        loop = ToolLoop(gateway, "alice", "m")
        for _ in range(45):
            loop.on_tool()
        await loop.step()
        return loop

    policy = POLICY + 'stages = ["stub", "drop"]\n'
    async with rig(SAYS, policy=policy, window_tokens=32_768) as (gateway, engine):
        loop = await shortened(gateway)
        prompt = sent(engine)
        found = [HANDLE.search(message["content"]) for message in prompt["messages"] if message["role"] == "tool"]
        name = next(match[0] for match in found if match)
        assert prompt["tools"][-1]["function"]["name"] == NAME
    async with rig(recall(name), SAYS, policy=policy, window_tokens=32_768) as (gateway, engine):
        await shortened(gateway)
        assert sent(engine, 0)["messages"] == prompt["messages"]
        said = results(engine)[-1]
        assert any(said == message["content"] for message in loop.messages if message["role"] == "tool")
        edits = (await gateway.ends())[-1].edits
        assert edits[0] == "recall tool"
        assert edits[1].startswith("compressed: ")


async def test_usage_is_of_the_clients_prompt_and_of_all_that_was_written(rig: Rig) -> None:
    first = msgspec.structs.replace(recall(handle()), usage=(100, 20), cached_tokens=64)
    second = msgspec.structs.replace(SAYS, usage=(170, 9), cached_tokens=120)
    for stream in (True, False):
        async with rig(first, second) as (gateway, _):
            if stream:
                (usage,) = (await streamed(gateway)).seen.usage
            else:
                usage = (await gateway.chat(**request())).json()["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 29, 129)
            assert usage["prompt_tokens_details"] == {"cached_tokens": 64}
            end = (await gateway.ends())[-1]
            assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens) == (100, 29, 64)
            assert "recall_prompt: 170 tokens, 120 from cache" in end.flags


async def test_an_engine_that_does_not_tell_what_was_cached_has_not_said_0(rig: Rig) -> None:
    second = msgspec.structs.replace(SAYS, usage=(170, 9))
    async with rig(recall(handle()), second, report_cached_tokens=False) as (gateway, _):
        await streamed(gateway)
        assert "recall_prompt: 170 tokens" in (await gateway.ends())[-1].flags


async def test_a_whole_answer_too(rig: Rig) -> None:
    async with rig(recall(handle(), say="Let me see.", reasoning="Hm."), SAYS) as (gateway, engine):
        keep(gateway)
        answer = (await gateway.chat(**request())).raise_for_status().json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"] == {
            "role": "assistant", "content": "Let me see.\n\nIt is 7143.", "reasoning_content": "Hm.",
        }  # fmt: skip
        assert answer["id"] == "chatcmpl-000001"
        assert results(engine) == [TEXT]


async def test_nothing_is_added_where_the_model_recalls_nothing(rig: Rig) -> None:
    """Every byte is the engine's."""
    call = Behaviour(say="I look.", calls=(ScriptedCall("get_weather", {"city": "Oslo", "days": 2}),))
    async with rig(call) as (gateway, engine):
        played = await streamed(gateway)
        assert played.raw == bytes(engine.hits[-1].body_sent)
        whole = await gateway.chat(**request())
        assert whole.content == bytes(engine.hits[-1].body_sent)
        assert all("recall tool" in end.edits and end.flags == () for end in await gateway.ends())


async def test_a_call_beside_the_clients_own_is_dropped(rig: Rig) -> None:
    """Whichever comes first; the client's call is the first one it sees."""
    weather = ScriptedCall("get_weather", {"city": "Oslo", "days": 2})
    own = ScriptedCall(NAME, {"handle": handle()})
    for calls in ((own, weather), (weather, own), (own, weather, own)):
        async with rig(Behaviour(calls=calls)) as (gateway, engine):
            seen = (await streamed(gateway)).seen
            ((index, (_, name, arguments)),) = seen.calls.items()
            assert (index, name, arguments) == (0, "get_weather", '{"city":"Oslo","days":2}')
            assert seen.finishes == ["tool_calls"]
            message = (await gateway.chat(**request())).json()["choices"][0]["message"]
            assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]
            assert len(engine.hits) == 2
            for end in (await gateway.ends())[-2:]:
                assert end.flags == ("recall_dropped: beside the client's own tools",)


async def test_several_at_once(rig: Rig) -> None:
    async with rig(recall(handle(), handle("Another text.")), SAYS) as (gateway, engine):
        keep(gateway)
        keep(gateway, "Another text.")
        assert (await streamed(gateway)).seen.content == "It is 7143."
        assert results(engine) == [TEXT, "Another text."]
        own = sent(engine)["messages"][1]
        assert len({call["id"] for call in own["tool_calls"]}) == 2
        assert sum(flag.startswith("recalled: ") for flag in (await gateway.ends())[-1].flags) == 2


async def test_what_is_not_there_is_said(rig: Rig) -> None:
    """Another agent's text is not there either."""
    async with rig(recall(handle()), SAYS) as (gateway, engine):
        keep(gateway, agent="bob")
        await streamed(gateway)
        (said,) = results(engine)
        assert "nothing is kept under" in said
        assert TEXT not in said
        assert f"recall_unknown: {handle()}" in (await gateway.ends())[-1].flags


async def test_a_model_that_asks_for_ever_gets_an_end(rig: Rig) -> None:
    async with rig(recall(handle())) as (gateway, engine):
        keep(gateway)
        seen = (await streamed(gateway)).seen
        assert (seen.finishes, seen.content, seen.calls, seen.dones) == (["length"], "", {}, 1)
        assert len(engine.hits) == MOST_RECALLS + 2
        said = results(engine)
        assert said[0] == TEXT
        assert all("stands above" in each for each in said[1:MOST_RECALLS])
        assert "no more than" in said[-1]
        end = (await gateway.ends())[-1]
        assert end.state is TurnState.TRUNCATED
        assert end.pieces == MOST_RECALLS + 2
        assert f"recall_limit: asked again after {MOST_RECALLS}" in end.flags
        answer = (await gateway.chat(**request())).json()["choices"][0]
        assert (answer["finish_reason"], "tool_calls" in answer["message"]) == ("length", False)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "arguments", ["{not json", '"gov-"', "[]", "", '{"handle": 3}', '{"handle": "' + "x" * 100_000 + '"}', "{" * 5000]
)
async def test_hostile_arguments(arguments: str, stream: bool, rig: Rig) -> None:
    """Not JSON, huge, nested: the model is told, and what is sent is valid."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": NAME, "arguments": arguments}}
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}}
    if stream:
        answer: list[dict[str, Any]] = [
            {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
            {
                "sse": {
                    **head,
                    "choices": [
                        {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": None}
                    ],
                }
            },
            {"sse": {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}},
            {"sse": {**head, "choices": [], **usage}},
            {"data": "[DONE]"},
            {"close": "fin"},
        ]
    else:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
        answer = [
            {"status": 200, "headers": {"Content-Type": "application/json"}},
            {"json": {**head, "object": "chat.completion", "choices": choices, **usage}},
            {"close": "fin"},
        ]
    async with rig(answer, SAYS) as (gateway, engine):
        if stream:
            assert (await streamed(gateway)).seen.content == "It is 7143."
        else:
            assert (await gateway.chat(**request())).json()["choices"][0]["message"]["content"] == "It is 7143."
        own = sent(engine)["messages"][1]["tool_calls"][0]["function"]["arguments"]
        assert isinstance(msgspec.json.decode(own), dict)
        assert len(own) < 1100
        assert NAME in results(engine)[0]
        assert "recall_misasked: its arguments cannot be read" in (await gateway.ends())[-1].flags


async def test_calls_are_held_until_their_name_is_known(rig: Rig) -> None:
    """Pieces of three calls mixed, names late, text between them."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}

    def piece(index: int, **function: str) -> dict[str, Any]:
        call = {"index": index, "function": {"name": None, "arguments": "", **function}}
        delta = {"tool_calls": [call | {"id": f"c{index}" if "name" in function else None}]}
        return {"sse": {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}}

    answer = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        piece(0, arguments='{"han'),
        piece(1, arguments='{"city"'),
        piece(0, name=NAME, arguments='dle": '),
        piece(1, name="get_weather", arguments=': "Oslo"'),
        piece(2, name="get_weather", arguments="{}"),
        piece(0, arguments='"gov-1"}'),
        piece(1, arguments=', "days": 2}'),
        {"sse": {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}},
        {"data": "[DONE]"},
        {"close": "fin"},
    ]
    async with rig(answer) as (gateway, _):
        seen = (await streamed(gateway)).seen
        assert seen.calls == {
            0: ["c1", "get_weather", '{"city": "Oslo", "days": 2}'],
            1: ["c2", "get_weather", "{}"],
        }


async def test_a_giant_text_comes_in_parts(rig: Rig) -> None:
    text = "\n".join(f"line {number} of the log" for number in range(40_000))
    async with rig(recall(handle(text)), recall(handle(text), offset=5000, limit=1000), SAYS, window_tokens=16_384) as (
        gw,
        engine,
    ):
        keep(gw, text)
        assert (await streamed(gw)).seen.finishes == ["stop"]
        whole, part = results(engine)
        assert whole.startswith(text[:1000])
        assert whole.endswith(text[-500:])
        assert "to read them: offset=" in whole
        assert part.startswith(text[5000:6000])
        assert f"[characters 5,000 to 6,000 of {len(text):,}; for what follows: offset=6000]" in part


@pytest.mark.parametrize(("filled", "came"), [(900, True), (3600, False)])
async def test_no_more_than_there_is_room_for(filled: int, came: bool, rig: Rig) -> None:
    """The window is nearly full: little comes back, or nothing, and the engine never refuses."""
    text = "word " * 4000
    again = (recall(handle(text)),) if came else ()
    policy = POLICY + "trigger = 1.0\n"
    async with rig(recall(handle(text)), *again, SAYS, window_tokens=4096, policy=policy) as (gateway, engine):
        keep(gateway, text)
        messages = [{"role": "user", "content": "fill " * filled}]
        played = await streamed(gateway, messages=messages, max_tokens=300)
        assert played.seen.content == "It is 7143."
        first, *more = results(engine)
        assert (first.startswith("word word"), "does not fit" in first) == (came, not came)
        assert all("stands above" in each for each in more)
        flags = [flag.partition(":")[0] for flag in (await gateway.ends())[-1].flags]
        assert ("recalled" if came else "recall_no_room") in flags


async def test_the_cap_is_of_the_whole_answer(rig: Rig) -> None:
    async with rig(recall(handle(), say="Let me see what it was."), SAYS) as (gateway, engine):
        keep(gateway)
        await streamed(gateway, max_tokens=100)
        used = 100 - sent(engine)["max_tokens"]
        assert 6 < used < 40
        assert sent(engine, 0)["max_tokens"] == 100
    async with rig(recall(handle()), SAYS) as (gateway, engine):
        keep(gateway)
        seen = (await streamed(gateway, max_tokens=3)).seen
        assert seen.finishes == ["length"]
        assert seen.calls == {}
        assert len(engine.hits) == 1


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110 - what is waited for is the disk
            await asyncio.sleep(0.02)


async def test_decided_at_a_sessions_first_turn(rig: Rig) -> None:
    async with rig(SAYS, policy="# all by default") as (gateway, engine):
        policy = gateway.home.policies / "alice.toml"
        events = gateway.governor.events
        old = request()
        await gateway.chat(**old)
        await gateway.ends()
        seen = events.last_id
        policy.write_text(POLICY)
        await until(lambda: events.last_id > seen)
        more = [*old["messages"], {"role": "assistant", "content": "7143"}, {"role": "user", "content": "Sure?"}]
        await gateway.chat(**request(messages=more))
        assert sent(engine)["tools"] == [WEATHER], "it was begun without"
        begun = [{"role": "user", "content": "Something else."}]
        await gateway.chat(**request(messages=begun))
        assert sent(engine)["tools"] == [WEATHER, msgspec.json.decode(TOOL)]
        await gateway.ends()
        seen = events.last_id
        policy.write_text("# all by default")
        await until(lambda: events.last_id > seen)
        more = [*begun, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        await gateway.chat(**request(messages=more))
        assert sent(engine)["tools"][-1] == msgspec.json.decode(TOOL), "it was begun with it"
        await gateway.chat(**request(messages=[{"role": "user", "content": "A third one."}]))
        assert sent(engine)["tools"] == [WEATHER]


async def test_where_it_is_not_offered(rig: Rig) -> None:
    theirs = {"type": "function", "function": {"name": NAME, "parameters": {"type": "object"}}}
    call = Behaviour(calls=(ScriptedCall(NAME, {"handle": "mine"}),))
    async with rig(call) as (gateway, engine):
        seen = (await streamed(gateway, tools=[theirs])).seen
        assert seen.calls[0][1:] == [NAME, '{"handle":"mine"}'], "it is the client's own"
        assert sent(engine)["tools"] == [theirs]
        assert (await gateway.ends())[-1].flags == (f"recall_tool_withheld: the client has a tool called {NAME}",)
        others: tuple[dict[str, Any], ...] = ({"tools": []}, {"tools": None}, {"n": 2})
        for fields in others:
            await gateway.chat(**request(**fields))
            assert TOOL not in engine.hits[-1].body
        await gateway.chat("bob", **request(tools=[]))


async def test_a_client_that_leaves_ends_it(rig: Rig) -> None:
    slow = Behaviour(say=2000)
    async with rig(recall(handle(), say="See."), slow, decode_tokens_per_s=200.0) as (gateway, engine):
        keep(gateway)
        async with (
            gateway.client() as client,
            client.stream("POST", "/v1/chat/completions", json=request(stream=True, max_tokens=3000)) as answer,
        ):
            chunks = answer.aiter_bytes()
            async with asyncio.timeout(10):
                while len(engine.hits) < 2:
                    await anext(chunks)
        end = (await gateway.ends())[-1]
        assert end.state is TurnState.CLIENT_ABORTED
        async with asyncio.timeout(5):
            while engine.hits[-1].peer_closed_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("word", ["503", "400:no", "cut", "cut@2"])
async def test_an_engine_that_does_not_go_on(word: str, stream: bool, rig: Rig) -> None:
    """The client is told; nothing is asked for anew."""
    async with rig(recall(handle()), word) as (gateway, engine):
        if stream:
            assert b'"error"' in (await streamed(gateway)).raw
        else:
            assert (await gateway.chat(**request())).status_code >= 500
        assert len(engine.hits) == 2
        assert (await gateway.ends())[-1].state is TurnState.UPSTREAM_ERROR


async def test_a_loop_behind_a_recall_is_ended(rig: Rig) -> None:
    """On an engine that answers in one generation, by the relay's own guard."""
    loops = Behaviour(say="And so on and on. " * 300)
    async with rig(recall(handle()), loops, policy=POLICY + "[output]\nloop_chars = 200\n") as (gateway, engine):
        seen = (await streamed(gateway, max_tokens=4000)).seen
        assert (seen.finishes, seen.dones, seen.roles) == (["length"], 1, 1)
        assert len(seen.content) < 1000
        assert len(engine.hits) == 2


async def test_the_sdk_reads_it(rig: Rig) -> None:
    async with rig(recall(handle(), say="Let me see."), SAYS) as (gateway, _):
        keep(gateway)
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["alice"], max_retries=0)
        async with (
            client,
            client.chat.completions.stream(
                model="m",
                messages=[{"role": "user", "content": "Which port?"}],
                tools=[WEATHER],
                stream_options={"include_usage": True},
            ) as stream,
        ):
            final = await stream.get_final_completion()
        message = final.choices[0].message
        assert message.content == "Let me see.\n\nIt is 7143."
        assert not message.tool_calls
        assert final.choices[0].finish_reason == "stop"
        assert final.usage is not None

"""The openai and anthropic SDKs through the gateway: chat, streams, tools, responses and messages pass-through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import openai
import pytest
from anthropic.types import ToolParam
from openai.types.chat import ChatCompletionFunctionToolParam

from governor.types import TurnKind, TurnState
from serve.scripted import Behaviour, Knobs, ScriptedCall, ScriptedEngine
from tests.harness import Governed, governed

_TEXT = Behaviour(say="It is warm.", reasoning="Hm.", usage=(100, 20), cached_tokens=60)
_CALL = Behaviour(calls=(ScriptedCall("weather", {"city": "Oslo"}),), usage=(100, 20), cached_tokens=60)
_TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
_ANTHROPIC_TOOL: ToolParam = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(_CALL, _TEXT, knobs=Knobs(model="m")) as engine:
        yield engine


@pytest.fixture
async def running(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    async with governed(engine.url, tmp_path) as running:
        yield running
        await running.assert_idle()


def _openai(running: Governed, key: str | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=running.url + "/v1", api_key=key or running.keys["alice"], max_retries=0)


def _anthropic(running: Governed) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=running.url, api_key=running.keys["alice"], max_retries=0)


async def test_tool_round_trip_streamed(running: Governed, engine: ScriptedEngine) -> None:
    async with _openai(running) as client:
        history: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "weather?"}]
        async with client.chat.completions.stream(model="m", messages=history, tools=[_TOOL]) as stream:
            first = await stream.get_final_completion()
        assert first.choices[0].finish_reason == "tool_calls"
        calls = first.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].function.arguments == '{"city":"Oslo"}'
        history.append(
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": calls[0].id,
                        "type": "function",
                        "function": {"name": "weather", "arguments": calls[0].function.arguments},
                    }
                ],
            }
        )
        history.append({"role": "tool", "tool_call_id": calls[0].id, "content": "21 C"})
        async with client.chat.completions.stream(
            model="m", messages=history, tools=[_TOOL], stream_options={"include_usage": True}
        ) as stream:
            second = await stream.get_final_completion()
    assert second.choices[0].message.content == "It is warm."
    assert second.usage is not None
    assert second.usage.prompt_tokens == 100
    ends = await running.ends()
    assert [(end.state, end.kind) for end in ends] == [(TurnState.OK, TurnKind.TOOL_STEP)] * 2
    assert ends[0].session == ends[1].session
    assert ends[0].usage.prompt_tokens == 100, "asked for on the client's behalf"
    assert len(engine.hits) == 2


async def test_whole_answers_and_models(running: Governed, engine: ScriptedEngine) -> None:
    async with _openai(running) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == "It is warm."
        completion = await client.completions.create(model="m", prompt="Once", max_tokens=5)
        assert completion.choices[0].text
    assert [end.state for end in await running.ends()] == [TurnState.OK, TurnState.OK, TurnState.TRUNCATED]


async def test_errors_are_the_sdks_own(running: Governed, engine: ScriptedEngine) -> None:
    async with _openai(running, key="gov-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    async with _openai(running) as client:
        with pytest.raises(openai.NotFoundError, match="not served here"):
            await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
        long: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 300_000}]
        with pytest.raises(openai.BadRequestError) as overflow:
            await client.chat.completions.create(model="m", messages=long)
        assert overflow.value.code == "context_length_exceeded"
    assert engine.hits == []


async def test_responses(running: Governed) -> None:
    async with _openai(running) as client:
        async with client.responses.stream(model="m", input="weather?") as stream:
            first = await stream.get_final_response()
        assert [item.type for item in first.output if item.type == "function_call"] == ["function_call"]
        second = await client.responses.create(model="m", input="and now?", max_output_tokens=50)
        assert second.output_text == "It is warm."
    ends = await running.ends()
    assert [end.state for end in ends] == [TurnState.OK] * 2
    assert [end.usage.prompt_tokens for end in ends] == [100, 100]
    assert ends[1].cap_applied == 50


async def test_messages(running: Governed, engine: ScriptedEngine) -> None:
    async with _anthropic(running) as client:
        async with client.messages.stream(
            model="m", max_tokens=500, messages=[{"role": "user", "content": "weather?"}], tools=[_ANTHROPIC_TOOL]
        ) as stream:
            first = await stream.get_final_message()
        assert first.stop_reason == "tool_use"
        second = await client.messages.create(
            model="m", max_tokens=500, system="Be brief.", messages=[{"role": "user", "content": "and now?"}]
        )
        assert [block.text for block in second.content if block.type == "text"] == ["It is warm."]
        counted = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}])
        assert counted.input_tokens > 0
    ends = await running.ends()
    assert [end.state for end in ends] == [TurnState.OK] * 3
    assert [end.usage.prompt_tokens for end in ends[:2]] == [100, 100]
    assert ends[0].usage.cached_tokens == 60


async def test_messages_errors_have_anthropics_shape(running: Governed) -> None:
    async with _anthropic(running) as client:
        with pytest.raises(anthropic.NotFoundError) as error:
            await client.messages.create(model="nope", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
    assert error.value.body is not None
    assert error.value.body["type"] == "error"  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_the_engine_gave_up_is_no_success(tmp_path: Path, stream: bool) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
    whole = {"index": 0, "message": {"role": "assistant", "content": "Half"}, "finish_reason": "abort"}
    half = {"index": 0, "delta": {"content": "Half"}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "abort"}
    streamed: list[dict[str, object]] = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        {"sse": {**chunk, "choices": [half]}},
        {"sse": {**chunk, "choices": [end]}},
        {"data": "[DONE]"},
        {"close": "fin"},
    ]
    plain: list[dict[str, object]] = [
        {"status": 200, "headers": {"Content-Type": "application/json"}},
        {"json": {"id": "c", "object": "chat.completion", "model": "m", "choices": [whole]}},
        {"close": "fin"},
    ]
    async with (
        ScriptedEngine(streamed if stream else plain, knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path) as running,
    ):
        answer = await running.chat(stream=stream)
        assert (answer.status_code == 200) is stream
        assert '"code":"upstream_cut"' in answer.text
        end_of_turn = await running.end()
        assert end_of_turn.state is TurnState.UPSTREAM_ERROR
        assert end_of_turn.finish_reason == "abort"

"""The twin's server as the OpenAI and Anthropic SDKs see it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageFunctionToolCall

from tests.twin_server import WEATHER, Running, twin_server

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]


def wish(**twin: Any) -> dict[str, Any]:
    return {"custom_params": {"twin": twin}}


SAYS = wish(reasoning="Let me think.", text="It is sunny.")
CALLS = wish(reasoning="I look it up.", calls=[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}])


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    async with twin_server() as running:
        yield running


@pytest.fixture
async def sdk(twin: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{twin.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_an_answer(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="m", messages=QUESTION, extra_body=SAYS)
    (choice,) = answer.choices
    assert choice.message.content == "\n\nIt is sunny."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "Let me think.\n"
    assert (choice.finish_reason, choice.message.tool_calls, answer.model) == ("stop", None, "m")
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens


async def chunks_of(sdk: openai.AsyncOpenAI, **fields: Any) -> list[ChatCompletionChunk]:
    stream = await sdk.chat.completions.create(
        model="m", messages=QUESTION, stream=True, stream_options={"include_usage": True}, **fields
    )
    return [chunk async for chunk in stream]


async def test_a_stream_says_what_the_answer_says(sdk: openai.AsyncOpenAI) -> None:
    chunks = await chunks_of(sdk, extra_body=SAYS)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "\n\nIt is sunny."
    assert "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas) == "Let me think.\n"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert not chunks[-1].choices
    whole = await sdk.chat.completions.create(model="m", messages=QUESTION, extra_body=SAYS)
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_a_tool_call(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="m", messages=QUESTION, tools=[WEATHER], extra_body=CALLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo", "days": 2})


async def test_a_streamed_tool_call_and_its_result(sdk: openai.AsyncOpenAI) -> None:
    chunks = await chunks_of(sdk, tools=[WEATHER], extra_body=CALLS)
    pieces = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert pieces[0].function is not None
    assert (pieces[0].function.name, pieces[0].index) == ("get_weather", 0)
    arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
    assert json.loads(arguments) == {"city": "Oslo", "days": 2}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"

    said = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I look it up.",
        "tool_calls": [
            {"id": pieces[0].id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        ],
    }
    result = {"role": "tool", "tool_call_id": pieces[0].id, "content": "sun " * 100}
    messages = [*QUESTION, said, result]
    answer = await sdk.chat.completions.create(model="m", messages=messages, tools=[WEATHER], extra_body=SAYS)
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    first = chunks[-1].usage
    assert first is not None
    # The second turn only appends, so all pages of the first prompt are there but for those without a state.
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= first.prompt_tokens // 64 * 64


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"]
)
async def test_a_call_that_must_be(choice: Any, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="m", messages=QUESTION, tools=[WEATHER], tool_choice=choice)
    assert [call.type for call in answer.choices[0].message.tool_calls or ()] == ["function"]
    forbidden = await sdk.chat.completions.create(model="m", messages=QUESTION, tools=[WEATHER], tool_choice="none")
    assert forbidden.choices[0].message.tool_calls is None


async def test_caps_stops_and_several_choices(sdk: openai.AsyncOpenAI) -> None:
    short = await sdk.chat.completions.create(model="m", messages=QUESTION, max_completion_tokens=3, extra_body=SAYS)
    assert short.usage is not None
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)
    stopped = await sdk.chat.completions.create(model="m", messages=QUESTION, stop=["sun"], extra_body=SAYS)
    assert (stopped.choices[0].finish_reason, stopped.choices[0].message.content) == ("stop", "\n\nIt is ")
    assert (stopped.choices[0].model_extra or {})["matched_stop"] == "sun"
    several = await sdk.chat.completions.create(model="m", messages=QUESTION, n=3, extra_body=SAYS)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.usage is not None
    assert short.usage.prompt_tokens == several.usage.prompt_tokens


async def test_texts(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="m", prompt="Once upon a time", max_tokens=20)
    assert answer.usage is not None
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 20)
    stream = await sdk.completions.create(model="m", prompt="Once upon a time", max_tokens=20, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def test_errors_are_the_sdks_own(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 20_000}])
    with pytest.raises(openai.BadRequestError, match="maximum context length of 8192 tokens"):
        await sdk.chat.completions.create(model="m", messages=QUESTION, max_tokens=8190)
    with pytest.raises(openai.BadRequestError, match=r"\$\.max_tokens"):
        await sdk.chat.completions.create(model="m", messages=QUESTION, max_tokens="many")  # type: ignore[call-overload]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await sdk.models.retrieve("other")
    assert [model.id async for model in sdk.models.list()] == ["tiny-hybrid"]


async def test_the_messages_dialect(twin: Running) -> None:
    tool: Any = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    async with anthropic.AsyncAnthropic(base_url=twin.url, api_key="none", max_retries=0) as sdk:
        ask: dict[str, Any] = {"model": "m", "max_tokens": 400, "messages": QUESTION, "system": "Be kind."}
        count = await sdk.messages.count_tokens(model="m", messages=QUESTION, system="Be kind.")
        answer = await sdk.messages.create(**ask)
        assert answer.usage.input_tokens == count.input_tokens
        async with sdk.messages.stream(**ask) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in final.content] == [block.type for block in answer.content]
        assert final.content[-1] == answer.content[-1]
        assert (final.stop_reason, final.usage.output_tokens) == (answer.stop_reason, answer.usage.output_tokens)
        called = await sdk.messages.create(**ask, tools=[tool], tool_choice={"type": "any"})
        assert called.stop_reason == "tool_use"
        assert called.content[-1].type == "tool_use"
        with pytest.raises(anthropic.BadRequestError, match="context length"):
            await sdk.messages.create(**ask | {"messages": [{"role": "user", "content": "word " * 20_000}]})

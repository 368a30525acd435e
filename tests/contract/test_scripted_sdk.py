"""The openai and anthropic SDKs read the scripted engine's answers, streamed and whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from anthropic.types import ToolParam

from serve.scripted import Behaviour, Knobs, Overflow, ScriptedCall, ScriptedEngine

_ANSWER = Behaviour(
    say="It is warm and dry.",
    reasoning="Let me think.",
    calls=(ScriptedCall("weather", {"city": "Oslo"}), ScriptedCall("clock", {})),
    usage=(100, 20),
    cached_tokens=60,
)
_TOOL: ToolParam = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(_ANSWER) as engine:
        yield engine


def _openai(engine: ScriptedEngine) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="k", max_retries=0)


def _anthropic(engine: ScriptedEngine) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=engine.url, api_key="k", max_retries=0)


async def test_chat_whole(engine: ScriptedEngine) -> None:
    async with _openai(engine) as client:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    choice = answer.choices[0]
    assert choice.message.content == "It is warm and dry."
    assert choice.message.to_dict()["reasoning_content"] == "Let me think."
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls if c.type == "function"]
    assert calls == [("weather", '{"city":"Oslo"}'), ("clock", "{}")]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.total_tokens, answer.usage.prompt_tokens_details.cached_tokens) == (120, 60)


async def test_chat_stream(engine: ScriptedEngine) -> None:
    async with (
        _openai(engine) as client,
        client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "It is warm and dry."
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in calls] == ['{"city":"Oslo"}', "{}"]
    assert len({call.id for call in calls}) == 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 100
    assert kinds.count("content.done") == 1


async def test_two_choices() -> None:
    async with ScriptedEngine("say:two words") as engine, _openai(engine) as client:
        whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], n=2)
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], n=2, stream=True
        )
        texts = ["", ""]
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert [choice.message.content for choice in whole.choices] == ["two words"] * 2
    assert texts == ["two words"] * 2
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 4


async def test_completions() -> None:
    async with ScriptedEngine("say:two words") as engine, _openai(engine) as client:
        whole = await client.completions.create(model="m", prompt="x", max_tokens=1)
        stream = await client.completions.create(
            model="m", prompt="x", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("two", "length")
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "two words"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_responses_whole(engine: ScriptedEngine) -> None:
    async with _openai(engine) as client:
        answer = await client.responses.create(model="m", input="hi")
    assert answer.output_text == "It is warm and dry."
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens) == (100, 60)


async def test_responses_stream(engine: ScriptedEngine) -> None:
    async with _openai(engine) as client, client.responses.stream(model="m", input="hi") as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    assert answer.output_text == "It is warm and dry."
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert answer.status == "completed"
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(numbers)


async def test_messages_whole(engine: ScriptedEngine) -> None:
    async with _anthropic(engine) as client:
        answer = await client.messages.create(
            model="m", max_tokens=100, messages=[{"role": "user", "content": "hi"}], tools=[_TOOL]
        )
        counted = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}])
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[2].type == "tool_use"
    assert answer.content[2].input == {"city": "Oslo"}
    assert answer.stop_reason == "tool_use"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (40, 60)
    assert counted.input_tokens == 12


async def test_messages_stream(engine: ScriptedEngine) -> None:
    async with (
        _anthropic(engine) as client,
        client.messages.stream(
            model="m", max_tokens=100, messages=[{"role": "user", "content": "hi"}], tools=[_TOOL]
        ) as stream,
    ):
        starts = [event.index async for event in stream if event.type == "content_block_start"]
        answer = await stream.get_final_message()
    assert starts == [0, 1, 2, 3]
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[1].type == "text"
    assert answer.content[1].text == "It is warm and dry."
    assert answer.content[2].type == "tool_use"
    assert answer.content[2].input == {"city": "Oslo"}
    assert answer.usage.output_tokens == 20


async def test_the_cap_is_told_in_each_apis_words() -> None:
    async with ScriptedEngine() as engine, _openai(engine) as gpt, _anthropic(engine) as claude:
        chat = await gpt.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], max_completion_tokens=3
        )
        response = await gpt.responses.create(model="m", input="x", max_output_tokens=3)
        message = await claude.messages.create(model="m", max_tokens=3, messages=[{"role": "user", "content": "x"}])
    assert chat.choices[0].finish_reason == "length"
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert message.stop_reason == "max_tokens"


async def test_refusals_raise_the_sdks_own_errors() -> None:
    knobs = Knobs(overflow=Overflow.OPENAI)
    async with ScriptedEngine("429/7", "503", "overflow:openai", "500", knobs=knobs) as engine:
        async with _openai(engine) as client:
            with pytest.raises(openai.RateLimitError) as limited:
                await client.chat.completions.create(model="m", messages=[])
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=[])
            with pytest.raises(openai.BadRequestError) as overflow:
                await client.chat.completions.create(model="m", messages=[])
        async with _anthropic(engine) as claude:
            with pytest.raises(anthropic.InternalServerError):
                await claude.messages.create(model="m", max_tokens=1, messages=[])
    async with ScriptedEngine("overflow:sglang") as engine, _anthropic(engine) as claude:
        with pytest.raises(anthropic.BadRequestError, match="longer than the model's context length") as too_long:
            await claude.messages.create(model="m", max_tokens=1, messages=[])
    assert too_long.value.type == "invalid_request_error"
    assert limited.value.response.headers["retry-after"] == "7"
    assert overflow.value.code == "context_length_exceeded"


async def test_errors_inside_a_stream_are_seen() -> None:
    async with ScriptedEngine("error@2:worker lost") as engine, _openai(engine) as gpt, _anthropic(engine) as claude:
        with pytest.raises(openai.APIError, match="worker lost"):
            async for _ in await gpt.chat.completions.create(model="m", messages=[], stream=True):
                pass
        with pytest.raises(anthropic.APIStatusError, match="worker lost"):
            async for _ in await claude.messages.create(model="m", max_tokens=9, messages=[], stream=True):
                pass


async def test_the_model_list() -> None:
    async with ScriptedEngine(knobs=Knobs(model="org/name")) as engine, _openai(engine) as client:
        assert [model.id async for model in client.models.list()] == ["org/name"]
        assert (await client.models.retrieve("org/name")).id == "org/name"

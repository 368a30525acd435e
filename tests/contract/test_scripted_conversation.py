"""The scripted engine as an engine: window, cache, pace, faults, calls of agents."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from serve.scripted import CallKind, Knobs, ModeOptions, Overflow, ScriptedEngine, count_tokens
from tests.scenario import load_case

_CHAT = "/v1/chat/completions"


def _body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


async def _post(engine: ScriptedEngine, body: dict[str, Any], path: str = _CHAT) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(engine.url + path, json=body)


async def test_a_second_turn_is_served_from_the_cache() -> None:
    question = "word " * 500
    async with ScriptedEngine() as engine:
        first = (await _post(engine, _body(question))).json()
        history = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
            {"role": "user", "content": "and?"},
        ]
        second = (await _post(engine, {"model": "m", "messages": history})).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    seen = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert seen - 3 <= cached <= seen
    assert second["usage"]["prompt_tokens"] > cached


async def test_cached_tokens_can_stay_untold() -> None:
    async with ScriptedEngine(knobs=Knobs(report_cached_tokens=False)) as engine:
        assert "prompt_tokens_details" not in (await _post(engine, _body())).json()["usage"]


async def test_counts_asked_for_are_counts_used() -> None:
    text = "some words to count " * 50
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
    async with ScriptedEngine() as engine:
        used = (await _post(engine, _body(text, tools=tools))).json()["usage"]["prompt_tokens"]
        asked = (await _post(engine, _body(text, tools=tools), "/tokenize")).json()
        plain = (await _post(engine, {"prompt": text}, "/tokenize")).json()
        anthropic = (await _post(engine, _body(text, max_tokens=9), "/v1/messages/count_tokens")).json()
        used_by_messages = (await _post(engine, _body(text, max_tokens=9), "/v1/messages")).json()["usage"]
    assert asked["count"] == len(asked["tokens"]) == used
    assert plain["count"] == count_tokens(text)
    total = used_by_messages["input_tokens"] + used_by_messages["cache_read_input_tokens"]
    assert anthropic["input_tokens"] == total


async def test_counting_can_be_missing() -> None:
    async with ScriptedEngine(knobs=Knobs(count_endpoints=False)) as engine:
        assert (await _post(engine, {"prompt": "x"}, "/tokenize")).status_code == 404


@pytest.mark.parametrize(
    ("wording", "text"),
    [
        (Overflow.SGLANG, "The input (1011 tokens) is longer than the model's context length (500 tokens)."),
        (Overflow.VLLM, "maximum context length is 500 tokens. However, you requested 0 output tokens"),
        (Overflow.OPENAI, "maximum context length is 500 tokens. However, your messages resulted in 1011 tokens"),
        (Overflow.LLAMACPP, "request (1011 tokens) exceeds the available context size (500 tokens)"),
        (Overflow.SGLANG_SCHEDULER, "Input length (1011 tokens) exceeds the maximum allowed length (500 tokens)"),
    ],
)
async def test_a_prompt_over_the_window(wording: Overflow, text: str) -> None:
    async with ScriptedEngine(knobs=Knobs(window_tokens=500, overflow=wording)) as engine:
        response = await _post(engine, _body("word " * 1000))
    assert response.status_code == 400
    assert text in response.text


async def test_prompt_and_cap_together_must_fit() -> None:
    async with ScriptedEngine(knobs=Knobs(window_tokens=500, overflow=Overflow.SGLANG)) as engine:
        used = (await _post(engine, _body())).json()["usage"]["prompt_tokens"]
        fits = await _post(engine, _body(max_tokens=500 - used))
        overflows = await _post(engine, _body(max_tokens=501 - used))
    assert fits.status_code == 200
    assert overflows.status_code == 400
    assert f"maximum context length of 500 tokens. You requested a total of 501 tokens: {used}" in overflows.text


async def test_window_check_mode_holds_its_own_window() -> None:
    request = load_case("W15").variants[0].request
    assert request is not None
    async with ScriptedEngine("window_check", options=ModeOptions(window_tokens=262_144)) as engine:
        whole_window = await _post(engine, request.body)
        clamped = await _post(engine, {**request.body, "max_tokens": 219_000})
    assert whole_window.status_code == 400
    assert clamped.status_code == 200


async def test_the_pool_counts_what_does_not_fit() -> None:
    knobs = Knobs(pool_tokens=2_500, decode_tokens_per_s=100, answer_tokens=10)
    async with ScriptedEngine("pool_model", knobs=knobs) as engine:
        body = _body("word " * 700, max_tokens=100, stream=True)
        await asyncio.gather(*(_post(engine, body) for _ in range(3)))
        assert engine.pool.overflows == 0
        await asyncio.gather(*(_post(engine, body) for _ in range(4)))
    assert engine.pool.overflows == 1
    assert engine.pool.peak_running == 4
    assert (engine.pool.used_tokens, engine.pool.running) == (0, 0)


async def test_prefill_and_decode_take_their_time() -> None:
    knobs = Knobs(prefill_tokens_per_s=2_000, decode_tokens_per_s=200, answer_tokens=20)
    async with ScriptedEngine(knobs=knobs) as engine:
        for _ in range(2):
            await _post(engine, _body("word " * 1000, stream=True))
    cold, warm = engine.hits
    assert cold.token_times[0] - cold.received_at >= 1000 / 2_000
    assert warm.token_times[0] - warm.received_at < 1000 / 2_000
    for hit, prefill_s in ((cold, 0.5), (warm, 0.0)):
        assert hit.token_times[-1] - hit.received_at >= prefill_s + 20 / 200


async def test_an_agents_calls_follow_the_script_and_side_calls_their_own() -> None:
    title = {"messages": [{"role": "system", "content": "Generate a short, descriptive title (3-7 words) for"}]}
    calls = {CallKind.AGENT: ["429/1", "call:ls", "say:done"], CallKind.TITLE: ["say:A title"]}
    async with ScriptedEngine(calls=calls) as engine:
        refused = await _post(engine, _body())
        side = await _post(engine, title)
        calling = await _post(engine, _body())
        final = await _post(engine, _body())
        after = await _post(engine, _body())
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert side.json()["choices"][0]["message"]["content"] == "A title"
    assert calling.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert final.json()["choices"][0]["message"]["content"] == "done"
    assert after.json()["choices"][0]["finish_reason"] == "stop"
    assert [hit.kind for hit in engine.hits] == ["agent", "title", "agent", "agent", "agent"]


async def test_a_forced_overflow_claims_a_length_over_the_window() -> None:
    async with ScriptedEngine("overflow:sglang", "say", knobs=Knobs(window_tokens=65_536)) as engine:
        first, second = await _post(engine, _body()), await _post(engine, _body())
    assert "The input (65537 tokens) is longer than the model's context length (65536 tokens)." in first.text
    assert second.status_code == 200


async def test_faults_of_a_stream() -> None:
    async with ScriptedEngine("eof@3", "error@2", "cut@3", "rst@3", "cut@99") as engine:
        ended = await _post(engine, _body(stream=True))
        failed = await _post(engine, _body(stream=True))
        for expected in (httpx.RemoteProtocolError, httpx.ReadError, httpx.RemoteProtocolError):
            with pytest.raises(expected):
                await _post(engine, _body(stream=True))
    assert ended.text.count("data:") == 3
    assert "[DONE]" not in ended.text
    assert '"error":' in failed.text.split("\n\n")[2]
    assert [hit.tokens_sent for hit in engine.hits] == [2, 1, 2, 2, 32]


async def test_faults_of_an_answer_in_one_body() -> None:
    async with ScriptedEngine("error@1", "cut@1") as engine:
        assert (await _post(engine, _body())).status_code == 500
        with pytest.raises(httpx.RemoteProtocolError):
            await _post(engine, _body())


async def test_delay_and_bad_requests() -> None:
    knobs = Knobs(head_delay_s=0.05)
    async with ScriptedEngine({"delay_s": 0.05}, knobs=knobs) as engine, httpx.AsyncClient() as client:
        await _post(engine, _body())
        bad = await client.post(engine.url + _CHAT, content=b"{")
        stats = engine.hits[0]
        models = (await client.get(engine.url + "/v1/models")).json()["data"][0]
        assert (await client.get(engine.url + "/v1/models/scripted")).json() == models
        assert (await client.get(engine.url + "/health")).status_code == 200
    assert stats.ended_at is not None
    assert stats.ended_at - stats.received_at >= 0.1
    assert bad.status_code == 400
    assert models["max_model_len"] == 131_072


@pytest.mark.parametrize("name", ["absent", "false", "true", "other-key"])
async def test_usage_is_streamed_only_when_asked(name: str) -> None:
    variant = load_case("W04").variant(name)
    async with variant.engine() as engine:
        response = await _post(engine, variant.all_requests()[0].body)
    assert response.text.count('"usage"') == (1 if name == "true" else 0)
    if name == "true":
        assert '"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10' in response.text


@pytest.mark.parametrize(
    ("case", "name", "status"), [("W35", "keep", 200), ("W35", "forbid", 400), ("W31", "steer", 400)]
)
async def test_strict_modes_over_http(case: str, name: str, status: int) -> None:
    variant = load_case(case).variant(name)
    async with variant.engine() as engine:
        assert (await _post(engine, variant.all_requests()[0].body)).status_code == status

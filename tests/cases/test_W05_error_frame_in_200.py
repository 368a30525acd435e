"""W05 error-frame-in-200: a 200 that turns out to be a failure is told and recorded as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import chunks, metric, payloads, send, text
from tests.harness import Governed, governed
from tests.scenario import load_case

CASE = load_case("W05")
_FAILED = 'governor_turns_total{agent="alice",kind="final",state="upstream_error"}'


async def _assert_recorded_as_error(governor: Governed) -> None:
    end = await governor.end()
    assert end.state is TurnState.UPSTREAM_ERROR
    assert end.finish_reason is None
    assert await metric(governor, _FAILED) == 1
    await governor.assert_idle()


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("first-frame", 503, "worker limit reached"),
        ("empty-choices-plus-error", 502, "upstream unavailable"),
        ("zero-bytes", 502, "ended before"),
    ],
)
async def test_W05_error_before_anything_is_an_http_error(name: str, status: int, words: str, tmp_path: Path) -> None:
    variant = CASE.variant(name)
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]
        assert answer.headers["content-type"] == "application/json"
        assert len(engine.hits) == 1
        await _assert_recorded_as_error(governor)


async def test_W05_error_after_three_deltas_is_the_last_event(tmp_path: Path) -> None:
    variant = CASE.variant("after-3")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.status_code == 200
        assert text(answer.content) == "abc"
        assert chunks(answer.content)[-1]["error"]["message"] == "worker limit reached"
        assert "[DONE]" not in payloads(answer.content)
        assert not any(c.get("finish_reason") for chunk in chunks(answer.content) for c in chunk.get("choices", ()))
        assert len(engine.hits) == 1
        await _assert_recorded_as_error(governor)


async def test_W05_plain_200_with_an_error_object(tmp_path: Path) -> None:
    steps = [
        {"status": 200, "headers": {"Content-Type": "application/json"}},
        {"json": {"error": {"message": "worker limit reached", "code": 503}}},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat()
        assert answer.status_code == 503
        assert "worker limit reached" in answer.text
        await _assert_recorded_as_error(governor)


async def test_W05_messages_error_event(tmp_path: Path) -> None:
    opening = {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 5}}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    steps = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        {"sse": opening, "event": "message_start"},
        {"sse": delta, "event": "content_block_delta"},
        {"sse": error, "event": "error"},
        {"close": "fin"},
    ]
    body = {"model": "m", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        async with governor.client() as client:
            answer = await client.post("/v1/messages", json=body)
        assert answer.content == bytes(engine.hits[0].body_sent)
        end = await governor.end()
        assert (end.state, end.usage.prompt_tokens) == (TurnState.UPSTREAM_ERROR, 5)
        await governor.assert_idle()

"""W01 utf8-split: network writes that cut inside a character leave no mark on what the client reads."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from governor.types import TurnState
from serve.scripted import Behaviour, Knobs, ScriptedCall, ScriptedEngine
from tests.cases.play import chunks, send
from tests.harness import governed
from tests.scenario import CaseVariant, load_case

CASE = load_case("W01")
UNIT = "café 温度 🌍"


@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
async def test_W01_client_bytes_are_the_engines(variant: CaseVariant, tmp_path: Path) -> None:
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.content == bytes(engine.hits[0].body_sent)
        assert UNIT.encode() in answer.content
        assert "\ufffd" not in answer.text
        end = await governor.end()
        assert end.state is TurnState.OK
        assert end.response_bytes == len(answer.content)
        assert end.completion_tokens_estimated == len(UNIT.encode()) // 4
        assert "junk_events" not in end.flags


async def test_W01_tool_arguments_cut_at_every_byte(tmp_path: Path) -> None:
    call = {"name": "say", "arguments": '{"text": "' + UNIT + '"}'}
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "t", "function": call}]}}]}
    steps = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        {"sse": event, "piece_bytes": 1},
        {"sse": {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, "piece_bytes": 1},
        {"data": "[DONE]", "piece_bytes": 1},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat(stream=True)
        assert answer.content == bytes(engine.hits[0].body_sent)
        assert chunks(answer.content)[0] == event
        assert (await governor.end()).finish_reason == "tool_calls"


async def test_W01_plain_answer_in_single_bytes(tmp_path: Path) -> None:
    body = ('{"choices":[{"message":{"role":"assistant","content":"' + UNIT + '"},"finish_reason":"stop"}]}').encode()
    steps = [
        {"status": 200, "headers": {"Content-Type": "application/json"}},
        {"b64": base64.b64encode(body).decode(), "piece_bytes": 1},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat()
        assert answer.content == body
        assert answer.json()["choices"][0]["message"]["content"] == UNIT


async def test_W01_same_text_streamed_and_whole(tmp_path: Path) -> None:
    behaviour = Behaviour(say=UNIT, calls=(ScriptedCall("say", {"text": UNIT}),))
    async with (
        ScriptedEngine(behaviour, knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path) as governor,
    ):
        whole, streamed = await governor.chat(), await governor.chat(stream=True)
        assert [whole.content, streamed.content.replace(b"\xef\xbf\xbd", b"?")] == [
            bytes(engine.hits[0].body_sent),
            streamed.content,
        ]
        assert whole.json()["choices"][0]["message"]["content"] == UNIT

"""W27 overflow-phrase-in-content: only statuses and error fields tell an overflow, never what somebody wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governor.events import Compacted
from governor.types import TurnState
from serve.scripted import Behaviour, Knobs, ScriptedEngine
from tests.cases.play import send, text
from tests.harness import Governed, governed
from tests.scenario import load_case

(VARIANT,) = load_case("W27").variants
ENFORCE = {"alice": '[compression]\nmode = "enforce"\nclient_loops = "stop"\n'}
PHRASE = "This model's maximum context length is 8192 tokens; the prompt is too long (context_length_exceeded)"


async def assert_untouched(governor: Governed) -> None:
    """The turn's row is as any other's, and nobody compressed anything."""
    end = await governor.end()
    assert (end.state, end.error_code, end.flags) == (TurnState.OK, None, ())
    assert not [edit for edit in end.edits if edit.startswith(("compressed", "head"))]
    assert not [each for each in governor.governor.events.since(0) if isinstance(each.event, Compacted)]


async def test_W27_quoted_by_the_user(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path, policies=ENFORCE) as governor:
        answer = await send(governor, VARIANT.request)
        assert answer.content == bytes(engine.hits[0].body_sent)
        assert len(engine.hits) == 1
        await assert_untouched(governor)


async def test_W27_streamed_by_the_model_and_quoted_in_a_tool_result(tmp_path: Path) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": PHRASE + ". Why?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": '{"error": {"code": "context_length_exceeded"}} ' + PHRASE},
    ]
    async with (
        ScriptedEngine(Behaviour(say=PHRASE), knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path, policies=ENFORCE) as governor,
    ):
        answer = await governor.chat(messages=messages, stream=True)
        assert text(answer.content) == PHRASE
        assert len(engine.hits) == 1
        await assert_untouched(governor)


@pytest.mark.parametrize(
    ("error", "is_overflow"),
    [
        ({"code": "context_length_exceeded", "message": "no"}, True),
        ({"code": None, "message": "The prompt is too long."}, True),
        ({"code": "bad_tool", "message": "tool f failed", "param": PHRASE}, False),
    ],
    ids=["code", "message", "other-field"],
)
async def test_W27_real_error(error: dict[str, Any], is_overflow: bool, tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"status": 400, "headers": {"Content-Type": "application/json"}},
        {"json": {"error": error}},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat()
        assert answer.status_code == 400
        assert (answer.json()["error"]["code"] == "context_length_exceeded") == is_overflow
        end = await governor.end()
        assert end.state is (TurnState.REFUSED if is_overflow else TurnState.UPSTREAM_ERROR)
        assert len(engine.hits) == 1

"""W19 thinking-eats-cap: an answer that was all reasoning passes unchanged, and is flagged."""

from __future__ import annotations

from pathlib import Path

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import metric, send
from tests.harness import Governed, governed
from tests.scenario import load_case

(VARIANT,) = load_case("W19").variants
FLAG = "answer_lost_to_reasoning"


async def _assert_flagged(governor: Governed) -> None:
    end = await governor.end()
    assert (end.state, end.finish_reason) == (TurnState.TRUNCATED, "length")
    assert end.flags == (FLAG,)
    assert await metric(governor, f'governor_anomalies_total{{flag="{FLAG}"}}') == 1


async def test_W19_plain(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, VARIANT.request)
        assert answer.content == bytes(engine.hits[0].body_sent)
        (choice,) = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
        await _assert_flagged(governor)


async def test_W19_stream(tmp_path: Path) -> None:
    knobs = Knobs(model="m", reasoning_tokens=5000)
    async with ScriptedEngine(knobs=knobs) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat(stream=True, max_tokens=630, stream_options={"include_usage": True})
        assert answer.content == bytes(engine.hits[0].body_sent)
        await _assert_flagged(governor)


async def test_W19_a_cut_answer_with_text_is_not_flagged(tmp_path: Path) -> None:
    knobs = Knobs(model="m", reasoning_tokens=10, answer_tokens=5000)
    async with ScriptedEngine(knobs=knobs) as engine, governed(engine.url, tmp_path) as governor:
        await governor.chat(stream=True, max_tokens=60)
        end = await governor.end()
        assert (end.state, end.flags) == (TurnState.TRUNCATED, ())

"""W59 spec-decode-usage: tokens are what the engine reports, not how many chunks came; nothing becomes negative."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import metric, send
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W59").variants
FLAG = "reasoning_exceeds_completion"
_HEAD: dict[str, Any] = {"status": 200, "headers": {"Content-Type": "text/event-stream"}}


def _event(index: int, tokens: int | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 12, "completion_tokens": tokens, **more}}
    return {"sse": {"choices": [{"index": index, "delta": {"content": "tok "}, "finish_reason": finish}]} | usage}


def _script(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [_HEAD, *events, {"data": "[DONE]"}, {"close": "fin"}]


async def test_W59_nine_chunks(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, VARIANT.request)
        assert answer.content == bytes(engine.hits[0].body_sent)
        end = await governor.end()
        assert end.state is TurnState.OK
        assert (end.usage.completion_tokens, end.usage.reasoning_tokens) == (40, 43)
        assert end.completion_tokens_estimated is None
        assert end.flags == (FLAG,)
        assert await metric(governor, f'governor_anomalies_total{{flag="{FLAG}"}}') == 1
        assert await metric(governor, 'governor_tokens_total{agent="alice",type="completion"}') == 40
        (alice,) = (await governor.snapshot()).agents
        assert (alice.completion_tokens, alice.prompt_tokens) == (40, 12)


async def test_W59_continuous_usage_is_not_summed(tmp_path: Path) -> None:
    steps = _script(_event(0, 4), _event(0, 8), _event(0, 12, finish="stop"))
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        await governor.chat(stream=True)
        end = await governor.end()
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (12, 12)


async def test_W59_two_choices_reported_by_themselves_are_summed(tmp_path: Path) -> None:
    steps = _script(_event(0, 4), _event(1, 3), _event(1, 9, finish="stop"), _event(0, 7, finish="stop"))
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        await governor.chat(stream=True, n=2)
        end = await governor.end()
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (12, 16)


async def test_W59_the_final_report_wins_over_those_of_the_choices(tmp_path: Path) -> None:
    final = {"sse": {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 17}}}
    steps = _script(_event(0, 4), _event(1, 9, finish="stop"), _event(0, 7, finish="stop"), final)
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        await governor.chat(stream=True, n=2)
        assert (await governor.end()).usage.completion_tokens == 17


async def test_W59_negative_and_odd_figures_are_unknown(tmp_path: Path) -> None:
    steps = _script(_event(0, -5, finish="stop", completion_tokens_details={"reasoning_tokens": "many"}))
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        await governor.chat(stream=True)
        end = await governor.end()
        assert (end.usage.completion_tokens, end.usage.reasoning_tokens) == (None, None)
        assert end.completion_tokens_estimated == 1
        assert end.flags == ()


async def test_W59_reasoning_beside_an_unknown_total_is_no_anomaly(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 5}}
    last = {"sse": {"choices": [], "usage": usage}}
    steps = _script(_event(0, finish="stop"), last)
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        await governor.chat(stream=True)
        end = await governor.end()
        assert (end.usage.reasoning_tokens, end.usage.completion_tokens) == (5, None)
        assert end.flags == ()

"""Engines that make a bench print a good figure of something else: each is caught, and said."""

from __future__ import annotations

import pytest

from governor.measure.errors import MeasureFailed, NoUsage
from governor.measure.options import Options
from governor.measure.result import Metric
from serve.scripted.behaviour import Behaviour, Knobs
from serve.scripted.engine import ScriptedEngine
from tests.measuring import found, measured, measured_on_script

SMALL = Options(contexts=(512,), output_tokens=64)
WINDOW = 8192
BUSY = 0.3
"""What a busy machine may add to the engine's pace, or take from it; a count of events is off by 4."""


def knobs(**more: object) -> Knobs:
    return Knobs(**{"model": "m", "window_tokens": WINDOW, "answer_tokens": 4096, **more})  # type: ignore[arg-type]


async def test_an_engine_without_usage_is_not_measured() -> None:
    silent = [
        {"status": 200, "headers": {"content-type": "text/event-stream"}},
        {"sse": {"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}},
        {"sse": {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}},
        {"data": "[DONE]"},
    ]
    with pytest.raises(NoUsage, match="no prompt_tokens and no completion_tokens"):
        await measured_on_script(ScriptedEngine(silent, knobs=knobs()), "decode", SMALL)


async def test_several_tokens_in_an_event_do_not_halve_the_rate() -> None:
    """Four tokens an event at 200 tokens/s: counting events would say 50."""
    engine = ScriptedEngine(knobs=knobs(tokens_per_chunk=4, decode_tokens_per_s=200))
    result = await measured_on_script(engine, "decode", SMALL)
    rate = found(result, "decode", Metric.DECODE_RATE)
    assert rate.median == pytest.approx(200, rel=BUSY)
    assert found(result, "decode", Metric.TOKENS_PER_EVENT).median == pytest.approx(4, rel=0.1)
    assert any("several tokens" in note for note in result.notes)
    assert not [each for each in result.measures if each.metric is Metric.ITL_P50_MS], "events do not tell token times"
    assert [each for each in result.measures if each.metric is Metric.GAP_P99_MS]


async def test_one_token_an_event_gives_the_same_rate() -> None:
    engine = ScriptedEngine(knobs=knobs(tokens_per_chunk=1, decode_tokens_per_s=200))
    result = await measured_on_script(engine, "decode", SMALL)
    assert found(result, "decode", Metric.DECODE_RATE).median == pytest.approx(200, rel=BUSY)
    assert not any("several tokens" in note for note in result.notes)


async def test_what_should_be_cold_and_was_cached_is_thrown_out() -> None:
    """The engine has seen the same prompts before: a second run with the same seed."""
    async with ScriptedEngine(knobs=knobs(prefill_tokens_per_s=20_000)) as engine:
        first = await measured(engine.url, "tiers", SMALL)
        second = await measured(engine.url, "tiers", SMALL)
        third = await measured(engine.url, "tiers", SMALL, seed="another")
    for result in (first, third):
        assert found(result, "cold", Metric.TTFT_S).median >= 512 / 20_000 * 0.9
        assert not result.thrown
    [thrown] = second.thrown
    assert thrown.what == "cold 512"
    assert "should have been cold" in thrown.reason
    assert not [each for each in second.measures if each.case.name == "cold"]
    assert not [each for each in second.measures if each.case.name == "L1"], "there was no cold one to come back to"


async def test_concurrent_cold_prompts_are_checked_as_well() -> None:
    options = Options(contexts=(512,), requests=(2,), output_tokens=32)
    async with ScriptedEngine(knobs=knobs(decode_tokens_per_s=1000)) as engine:
        await measured(engine.url, "concurrency", options)
        again = await measured(engine.url, "concurrency", options)
    assert [each.what for each in again.thrown] == ["cold 2 x 512"]
    assert found(again, "decode", Metric.DECODE_RATE, 512, 2).served, "what they wrote then still counts"


async def test_an_answer_that_ends_early_has_no_rate() -> None:
    engine = ScriptedEngine(knobs=knobs(answer_tokens=16, decode_tokens_per_s=2000))
    result = await measured_on_script(engine, "decode", SMALL, repeats=2)
    assert not result.measures
    assert len(result.thrown) == 2
    assert "ended after 16 of 64 tokens" in result.thrown[0].reason


async def test_usage_that_claims_a_finish_it_did_not_reach_is_no_better() -> None:
    """``finish_reason: length`` with fewer tokens than were asked for."""
    engine = ScriptedEngine(Behaviour(say=10, finish="length"), knobs=knobs())
    result = await measured_on_script(engine, "decode", SMALL)
    assert not result.measures
    assert "10 of 64" in result.thrown[0].reason


async def test_an_engine_that_does_not_tell_what_it_cached_proves_nothing_and_says_so() -> None:
    engine = ScriptedEngine(knobs=knobs(report_cached_tokens=False, prefill_tokens_per_s=50_000))
    result = await measured_on_script(engine, "tiers", SMALL)
    assert any("is not proven" in note for note in result.notes)
    assert found(result, "cold", Metric.TTFT_S).served[0].cached_tokens is None


async def test_a_cache_that_is_used_and_denied_is_noticed_by_the_time() -> None:
    """The second run's prompts are in the cache, and the engine does not say so."""
    options = Options(contexts=(4096,))
    quiet = knobs(report_cached_tokens=False, prefill_tokens_per_s=20_000, head_delay_s=0.05)
    async with ScriptedEngine(knobs=quiet) as engine:
        first = await measured(engine.url, "tiers", options)
        second = await measured(engine.url, "tiers", options)
    assert not any("as fast as one from L1" in note for note in first.notes)
    assert any("as fast as one from L1" in note for note in second.notes)


async def test_an_engine_that_fails_before_anything_is_measured_is_an_error() -> None:
    engine = ScriptedEngine("500", knobs=knobs())
    with pytest.raises(MeasureFailed, match="500"):
        await measured_on_script(engine, "tiers", SMALL)


async def test_a_failing_answer_is_thrown_out_and_the_rest_goes_on() -> None:
    """Two to calibrate, three to warm up, then the first cold one breaks off."""
    engine = ScriptedEngine(*["say"] * 5, "cut@1", "say", knobs=knobs(answer_tokens=64))
    result = await measured_on_script(engine, "tiers", SMALL, repeats=2)
    assert len(found(result, "cold", Metric.TTFT_S).values) == 1
    assert [each.what for each in result.thrown] == ["cold 512"]

"""The suites in a small size on the real SGLang: every tier serves what it is said to have served."""

from __future__ import annotations

import pytest

from governor.measure import Result
from governor.measure.options import Options
from governor.measure.result import Measure, Metric, Split
from tests.measuring import found, measured
from tests.sglang.server import SglangServer

pytestmark = pytest.mark.sglang

CONTEXT = 1024


def split_of(measure: Measure) -> Split:
    split = measure.served[-1].split
    assert split is not None
    return split


def assert_clean(result: Result) -> None:
    assert result.is_complete
    assert not result.thrown
    assert result.engine.kind == "sglang"
    assert result.engine.prompts == "tokens"
    assert result.engine.model_hash is not None
    assert result.engine.flags["page_size"] == 64
    assert not {"api_key", "admin_api_key", "host", "port", "model_path", "random_seed"} & set(result.engine.flags)
    for measure in result.measures:
        assert all(served.prompt_tokens >= measure.case.context_tokens for served in measure.served), measure.case


async def test_tiers(sglang_server: SglangServer) -> None:
    result = await measured(sglang_server.url, "tiers", Options(contexts=(CONTEXT,)), seed="tiers on a cpu")
    assert_clean(result)
    cold = found(result, "cold", Metric.TTFT_S)
    assert cold.served[0].cached_tokens == 0
    assert split_of(found(result, "L1", Metric.TTFT_S)) == Split(CONTEXT, 0, 0)
    assert split_of(found(result, "L2", Metric.TTFT_S)) == Split(0, CONTEXT, 0)
    assert split_of(found(result, "L3", Metric.TTFT_S)) == Split(0, 0, CONTEXT)
    assert found(result, "L1", Metric.TTFT_S).median < cold.median


async def test_decode_and_concurrency(sglang_server: SglangServer) -> None:
    options = Options(contexts=(512,), requests=(1, 2), output_tokens=32)
    decode = await measured(sglang_server.url, "decode", options, seed="decode on a cpu")
    assert_clean(decode)
    alone = found(decode, "decode", Metric.DECODE_RATE)
    assert alone.served[0].completion_tokens == 32
    assert alone.median > 1
    assert found(decode, "decode", Metric.ITL_P50_MS).median > 0
    together = await measured(sglang_server.url, "concurrency", options, seed="concurrency on a cpu")
    assert not together.thrown
    assert found(together, "decode", Metric.DECODE_RATE, 512, 2).median > 1
    cold = found(together, "cold", Metric.PREFILL_RATE, 512, 2)
    assert cold.median > 1


async def test_shapes(sglang_server: SglangServer) -> None:
    """Where the real engine resumes; ``tests/twin/test_bench_rows.py`` has the twin's word."""
    result = await measured(sglang_server.url, "shapes", Options(contexts=(700,)), seed="shapes on a cpu")
    assert not result.thrown
    cached = {each.case.name: each.median for each in result.measures if each.metric is Metric.CACHED_TOKENS}
    assert cached["cold"] == 0
    assert cached["continuation"] == 448, "500 tokens were stored"
    assert cached["branch"] == 384, "at the fork at 420, within a page"
    assert cached["exact repeat"] == 640
    assert cached["page-aligned repeat"] == 0, "its only state is at its end, which never matches"
    assert cached["continuation, from L2"] == 448
    assert split_of(found(result, "continuation, from L2", Metric.TTFT_S)).host == 448


async def test_interference(sglang_server: SglangServer) -> None:
    result = await measured(sglang_server.url, "interference", Options(contexts=(2048,)), seed="interference on a cpu")
    assert not result.thrown
    assert found(result, "interference", Metric.GAP_MAX_S).median > found(result, "alone", Metric.GAP_MAX_S).median

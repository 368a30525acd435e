"""``/metrics`` of a governor at work on the twin: what the dashboard asks for is there."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.grafana_board import board
from tests.harness import Governed
from tests.losing import AGENTS, Talk, losing

_METRIC = re.compile(r"\bgovernor_\w+")
RARE = {
    "governor_canary_passed",  # nobody has asked
    "governor_compaction_freed_tokens_total",
    "governor_anomalies_total",
    "governor_http_refused_total",
    "governor_pauses_total",
    "governor_paused_seconds_total",
    "governor_turns_without_usage_total",
}
"""Have no series before something happens."""


async def page_of(gov: Governed) -> str:
    async with gov.client(None) as client:
        return (await client.get("/metrics")).raise_for_status().text


async def test_the_dashboard_finds_what_it_asks_for(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        async with losing(Path(folder), tmp_path) as (engine, gov):
            talks = [Talk(gov, agent, seed) for seed, agent in enumerate(AGENTS)]
            for talk in talks:
                await talk.ask(1_000)
            await engine.flush()
            await asyncio.sleep(0.2)
            for talk in talks:
                await talk.ask(40)
            page = await page_of(gov)
    families = list(text_string_to_metric_families(page))
    typed = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    typed |= {f"{name}_bucket" for name in typed}
    sampled = {sample.name for family in families for sample in family.samples}
    queries = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    asked = {name for query in queries for name in _METRIC.findall(query)}
    assert len(asked) > 30
    assert asked <= typed
    assert asked - sampled <= RARE
    lost = {
        (sample.labels["agent"], sample.labels["cause"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "governor_prefix_lost_tokens_total"
    }
    assert set(lost) == {(agent, cause) for agent in AGENTS for cause in ("first_prompt", "flushed")}
    assert all(tokens > 900 for tokens in lost.values())

"""W70 honest-meters: unknown, zero and measured are three different things, in the log, the state and the metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from governor.cli.app import app
from governor.store.query import TurnLogReader
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import metric, send
from tests.harness import Governed, governed
from tests.scenario import CaseVariant, load_case

CASE = load_case("W70")
CACHED = {"absent": None, "null": None, "zero": 0, "hit": 4096}
_SERIES = 'governor_tokens_total{{agent="alice",type="{}"}}'


async def _assert_shown(governor: Governed, cached: int | None) -> None:
    end = await governor.end()
    assert (end.usage.prompt_tokens, end.usage.cached_tokens) == (4212, cached)
    assert end.usage.new_tokens == (None if cached is None else 4212 - cached)
    (alice,) = (await governor.snapshot()).agents
    assert alice.cached_tokens == cached
    assert alice.last_usage is not None
    assert (alice.last_usage.prompt_tokens, alice.last_usage.cached_tokens) == (4212, cached)
    assert alice.unreported == 0
    (summary,) = TurnLogReader(f"sqlite:///{governor.home.database}").usage()
    assert (summary.cached_tokens, summary.prompt_tokens) == (cached, 4212)
    assert summary.hit_share == (None if cached is None else pytest.approx(cached / 4212))
    async with governor.client(None) as client:
        page = (await client.get("/metrics")).text
    assert (_SERIES.format("cached") in page) == (cached is not None)
    assert await metric(governor, _SERIES.format("cached")) == (cached or 0)
    row = json.loads(await _command(governor, "log", "--json"))
    assert (row["closed"]["usage"]["prompt_tokens"], row["closed"]["usage"]["cached_tokens"]) == (4212, cached)
    assert f"4,212 ({'-' if cached is None else format(cached, ',')})" in await _command(governor, "log")
    assert json.loads(await _command(governor, "usage", "--json"))["cached_tokens"] == cached


async def _command(governor: Governed, *arguments: str) -> str:
    """The output of a ``governor`` command, run beside the governor."""
    environment = {"GOVERNOR_HOME": str(governor.home.root), "COLUMNS": "200"}
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return result.output


def _streamed(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The case's plain answer as a stream."""
    return [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        {"sse": {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}},
        {"sse": {"choices": []} | {key: value for key, value in body.items() if key in {"usage", "sglext"}}},
        {"data": "[DONE]"},
        {"close": "fin"},
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
async def test_W70_cached_tokens(variant: CaseVariant, stream: bool, tmp_path: Path) -> None:
    assert variant.request is not None
    assert isinstance(variant.stub, list)
    stub = _streamed(variant.stub[1]["json"]) if stream else variant.stub
    async with (
        ScriptedEngine(stub, knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path) as governor,
    ):
        (before,) = (await governor.snapshot()).agents
        assert (before.cached_tokens, before.last_usage) == (None, None)
        await send(governor, variant.request, stream=stream)
        await _assert_shown(governor, CACHED[variant.v])


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_W70_tiers_as_sglang_reports_them(stream: bool, tmp_path: Path) -> None:
    variant = CASE.variant("hit")
    assert variant.request is not None
    assert isinstance(variant.stub, list)
    body = variant.stub[1]["json"] | {"sglext": {"cached_tokens_details": {"device": 4000, "host": 96}}}
    plain = [variant.stub[0], {"json": body}, {"close": "fin"}]
    stub = _streamed(body) if stream else plain
    async with (
        ScriptedEngine(stub, knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path) as governor,
    ):
        await send(governor, variant.request, stream=stream)
        usage = (await governor.end()).usage
        assert (usage.cached_device_tokens, usage.cached_host_tokens) == (4000, 96)
        assert usage.cached_storage_tokens is None
        assert usage.cached_tokens == (usage.cached_device_tokens or 0) + (usage.cached_host_tokens or 0)


async def test_W70_unknown_does_not_pull_a_known_sum_down(tmp_path: Path) -> None:
    hit, absent = CASE.variant("hit"), CASE.variant("absent")
    assert hit.request is not None
    engine = ScriptedEngine(hit.stub or [], absent.stub or [], knobs=Knobs(model="m"))
    async with engine, governed(engine.url, tmp_path) as governor:
        for _ in range(2):
            await send(governor, hit.request)
        (alice,) = (await governor.snapshot()).agents
        assert (alice.cached_tokens, alice.prompt_tokens) == (4096, 8424)
        assert alice.last_usage is not None
        assert alice.last_usage.cached_tokens is None
        await governor.rows()
        (summary,) = TurnLogReader(f"sqlite:///{governor.home.database}").usage()
        assert summary.hit_share == pytest.approx(4096 / 4212)


async def test_W70_a_restart_resets_meters_but_not_the_log_and_shows_ages(tmp_path: Path) -> None:
    hit = CASE.variant("hit")
    assert hit.request is not None
    async with hit.engine() as engine:
        async with governed(engine.url, tmp_path) as governor:
            await send(governor, hit.request)
            first = await governor.snapshot()
        async with governed(engine.url, tmp_path, agents=("bob",)) as governor:
            second = await governor.snapshot()
            assert second.started_at > first.started_at
            alice = next(agent for agent in second.agents if agent.name == "alice")
            assert (alice.prompt_tokens, alice.cached_tokens, alice.last_usage) == (0, None, None)
            assert second.engine.checked_at is not None
            assert 0 <= second.now - second.engine.checked_at < 5
            (summary,) = TurnLogReader(f"sqlite:///{governor.home.database}").usage()
            assert summary.cached_tokens == 4096

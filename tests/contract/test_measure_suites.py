"""Suites whose figures nobody has published: that they see what they are for."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from governor.cli.bench_engine import connect
from governor.measure import Result
from governor.measure.options import Options
from governor.measure.prepare import make_prompts
from governor.measure.result import Metric
from governor.measure.session import Session, Step, Unwatched
from governor.measure.suites import SUITES
from governor.measure.suites.image import png
from governor.measure.suites.soak import growth_mib_per_h, resident_mib
from serve.scripted.behaviour import Knobs
from serve.scripted.engine import ScriptedEngine
from tests.measuring import found, machine_named, measured, measured_on_script, measured_on_twin, on_twin
from tests.twin_server import small_machine

SMALL = small_machine()


def test_the_incident_stalls_the_small_agents_of_an_engine_alone() -> None:
    """The hog and three small agents do not fit together: somebody waits for the hog's whole answer."""
    result = measured_on_twin(SMALL, "incident", Options(output_tokens=2000))
    assert not result.thrown
    small = found(result, "small agents", Metric.STALL_S, requests=3)
    assert small.median > 5 * found(result, "small agents", Metric.TTFT_S, requests=3).median
    assert found(result, "all", Metric.PREFILLED_PER_NEW).median >= 1
    assert found(result, "all", Metric.MAKESPAN_S).median >= found(result, "hog", Metric.MAKESPAN_S).median


async def test_agents_of_a_chat_send_their_whole_conversation() -> None:
    """As a governor or any OpenAI server sees agents: each turn is the last one, its answer, and something new."""
    knobs = Knobs(model="m", answer_tokens=4096, window_tokens=8192)
    async with ScriptedEngine(knobs=knobs) as engine:
        result = await measured(engine.url, "incident", Options(output_tokens=64))
        talks = [msgspec.json.decode(hit.body)["messages"] for hit in engine.hits]
    assert not result.thrown
    longest = max(talks, key=len)
    assert [each["role"] for each in longest] == ["user", "assistant"] * 5 + ["user"]
    assert longest[:-2] in talks
    assert found(result, "all", Metric.PREFILLED_PER_NEW).median == pytest.approx(1, abs=0.1)


def test_a_soak_of_an_engine_that_gives_everything_back() -> None:
    result = measured_on_twin(SMALL, "soak", Options(minutes=0.5))
    assert not result.thrown
    assert found(result, "soak", Metric.KV_LEFT_TOKENS, requests=4).median == 0
    assert 0.5 < found(result, "soak", Metric.DRIFT_RATIO, requests=4).median < 2
    assert any("--pid" in each.reason for each in result.skipped)


def test_the_memory_of_a_process_that_does_not_grow_is_watched() -> None:
    """A sleeping child: virtual minutes pass while it does nothing."""
    child = subprocess.Popen(["sleep", "600"])
    try:
        result = measured_on_twin(SMALL, "soak", Options(minutes=1.5, pids=(child.pid,)))
    finally:
        child.kill()
        child.wait()
    growth = found(result, "soak", Metric.MEMORY_MIB_PER_H, requests=4)
    assert growth.median == pytest.approx(0, abs=1)


def test_resident_memory_is_read_and_of_nobody_is_nothing() -> None:
    assert resident_mib(os.getpid()) > 10
    assert resident_mib(2**22 + 1) == 0


def test_memory_that_grows_is_told_by_the_hour() -> None:
    """Ten MiB a minute, after a start that has its own growth."""
    samples = [(at * 5.0, 500.0 + 100 * min(at, 10) + 10 * at * 5 / 60) for at in range(40)]
    assert growth_mib_per_h(samples) == pytest.approx(600, rel=0.01)
    assert growth_mib_per_h(samples[:8]) is None


async def test_an_image_is_asked_cold_and_again_where_the_model_takes_images() -> None:
    async with ScriptedEngine(knobs=Knobs(model="m", answer_tokens=4)) as engine:
        target = await connect(engine.url)
        target.facts = msgspec.structs.replace(target.facts, takes_images=True)
        session = Session(target, await make_prompts(target, "seed"), repeats=2)
        await session.take(SUITES["image"].steps(session, Options()))
        await target.aclose()
        bodies = [msgspec.json.decode(hit.body) for hit in engine.hits[-4:]]
    assert not session.thrown
    names = [measure.case.name for measure in session.measures if measure.metric is Metric.TTFT_S]
    assert names == ["image, cold", "image, return"]
    images = [body["messages"][0]["content"][0]["image_url"]["url"] for body in bodies]
    assert images[0] == images[1] != images[2] == images[3], "each repeat draws its own"


def test_a_picture_is_a_png_and_the_same_for_its_seed() -> None:
    picture = png("seed", 64)
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture == png("seed", 64)
    assert picture != png("other", 64)


def test_l3_after_a_restart_is_asked_of_the_restarted_engine() -> None:
    """The restart empties L1 and L2, as a new process would have them."""

    async def work(url: str) -> Result:
        target = await connect(url, monotonic=asyncio.get_running_loop().time)
        restarts = 0

        async def restart() -> None:
            nonlocal restarts
            restarts += 1
            assert target.keeper is not None
            await target.keeper.flush()

        try:
            result = await measured(url, "tiers", Options(contexts=(1024,), restart=restart))
        finally:
            await target.aclose()
        assert restarts == 1
        return result

    machine = small_machine(tiers={"storage_tokens": None})
    result = on_twin(machine, work)
    [served] = found(result, "L3 after a restart", Metric.TTFT_S).served
    assert served.split is not None
    assert served.split.storage == 1024


def test_what_does_not_fit_is_skipped_with_the_reason() -> None:
    result = measured_on_twin(SMALL, "concurrency", Options(contexts=(4000,), requests=(1, 4), output_tokens=64))
    assert [str(each.case) for each in result.measures if each.metric is Metric.DECODE_RATE] == ["decode 4,000"]
    assert any("do not fit L1 (8,192)" in each.reason for each in result.skipped)
    beyond = measured_on_twin(SMALL, "tiers", Options(contexts=(9000,)))
    assert not beyond.measures
    assert "do not fit the window of 8,192" in beyond.skipped[0].reason


def test_without_l2_a_flood_costs_a_prefill() -> None:
    machine = machine_named("rx7900xtx-epyc", tiers={"host_tokens": 0, "host_slots": 0})
    result = measured_on_twin(machine, "tiers", Options(contexts=(16_384,)))
    cold, again = (found(result, name, Metric.TTFT_S).median for name in ("cold", "return after eviction"))
    assert again == pytest.approx(cold, rel=0.02)
    assert not [each for each in result.measures if each.case.name == "L2"]


async def test_an_interrupted_run_keeps_what_it_has() -> None:
    kept: list[Result] = []

    class Interrupts(Unwatched):
        def on_step_done(self, step: Step) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async with ScriptedEngine(knobs=Knobs(model="m", answer_tokens=64, prefill_tokens_per_s=50_000)) as engine:
        running = asyncio.create_task(
            measured(engine.url, "tiers", Options(contexts=(512,)), watcher=Interrupts(), on_interrupted=kept.append)
        )
        with pytest.raises(asyncio.CancelledError):
            await running
    [result] = kept
    assert not result.is_complete
    assert [each.case.name for each in result.measures] == ["cold", "cold"]


async def test_a_suite_through_the_chat_route_counts_as_the_engine_does() -> None:
    """A plain OpenAI server: lengths are learnt from its usage, and what it counted is what stands in the result."""
    engine = ScriptedEngine(knobs=Knobs(model="m", answer_tokens=64, prefill_tokens_per_s=50_000))
    result = await measured_on_script(engine, "tiers", Options(contexts=(2048,)))
    assert result.engine.prompts == "text"
    [served] = found(result, "cold", Metric.TTFT_S).served
    assert served.prompt_tokens == pytest.approx(2048, rel=0.05)
    [hit] = found(result, "L1", Metric.TTFT_S).served
    assert hit.cached_tokens is not None
    assert hit.cached_tokens >= 0.9 * served.prompt_tokens


def test_each_suite_has_its_protocol_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench-protocol.md").read_text("utf-8")
    assert {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")} >= SUITES.keys()

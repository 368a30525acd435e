"""The benchmarks' own parts, where a mistake would show as a good figure."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bench.client import BenchFailed, Stream, Timing
from bench.conversation import BYTES_PER_TOKEN, Conversation
from bench.hot_steps import Stopwatch
from bench.overhead import RequestCost, latency_row, load_for
from bench.peers.__main__ import Compared, Result, sheets
from bench.processes import cpu_seconds, resident_mib, spawned
from bench.report import machine
from bench.rounds import Load, Measured, Twins, percentile
from governor.wire.request import parse
from serve.engine import Endpoint
from serve.scripted.behaviour import Knobs
from serve.scripted.engine import ScriptedEngine


@pytest.mark.parametrize("prompt_tokens", [1000, 10_000, 100_000])
def test_a_conversation_has_its_size_and_grows_at_its_end_until_it_is_full(prompt_tokens: int) -> None:
    talk = Conversation(prompt_tokens, seed="s", model="m")
    assert talk.body_bytes == len(talk.body())
    assert len(talk.body()) / (prompt_tokens * BYTES_PER_TOKEN) == pytest.approx(1.0, abs=0.2)
    grown = 0
    while not talk.is_full:
        before = talk.body()
        talk.grow()
        grown += 1
        assert talk.body().startswith(before[:-2])
    request = parse(Endpoint.CHAT, talk.body())
    assert request.roles[:4] == ("system", "user", "assistant", "tool")
    assert request.tools_usable
    assert grown >= 1


def test_two_runs_send_the_same_bytes() -> None:
    bodies = {Conversation(1000, seed=seed, model="m").body() for seed in ("a", "a", "b")}
    assert len(bodies) == 2


def test_all_streams_of_a_round_answer_at_once() -> None:
    for streams in (1, 8, 64):
        load = load_for(1000, streams, quick=False)
        assert load.answer_tokens / load.tokens_per_s > load.spread_s
        assert load.rounds * streams >= 60


def test_percentiles_interpolate() -> None:
    values = [float(number) for number in range(1, 102)]
    assert percentile(values, 50) == 51
    assert percentile(values, 99) == 100
    assert percentile([7.0], 99) == 7.0


def test_added_time_is_the_difference_of_twins_and_noise_that_of_the_straight_ones() -> None:
    def timing(ms: float) -> Timing:
        return Timing(ms / 1000, ms / 1000, ms / 1000, events=3)

    load = Load(prompt_tokens=1000, streams=1, rounds=1, requests_per_s=1, tokens_per_s=100)
    warm = [Twins(timing(10), timing(13), timing(11)), Twins(timing(50), timing(53), timing(49))]
    row = latency_row(load, Measured([Twins(timing(10), timing(30), timing(10))], warm), resident=1.0)
    added = row.added["first token"]
    assert (added.p50_ms, added.p99_ms, added.noise_p99_ms) == pytest.approx((3, 3, 1))
    assert row.cold_first_token_max_ms == pytest.approx(20)


@asynccontextmanager
async def connected(engine: ScriptedEngine) -> AsyncIterator[Stream]:
    async with engine, Stream(engine.url, None) as stream:
        yield stream


BODY = msgspec.json.encode({"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hello."}]})


async def test_the_client_sees_the_first_token_and_the_end_when_they_come() -> None:
    engine = ScriptedEngine(knobs=Knobs(answer_tokens=10, decode_tokens_per_s=100, head_delay_s=0.05))
    async with connected(engine) as stream:
        for _ in range(2):
            timing = await stream.ask(BODY)
            assert 0.05 <= timing.first_byte_s <= timing.first_token_s < timing.end_s
            assert timing.first_token_s - timing.first_byte_s >= 0.005
            assert timing.end_s - timing.first_token_s >= 0.08
            assert timing.events == 10 + 3


@pytest.mark.parametrize("word", ["503", "cut@4", "error@4", "rst@4"])
async def test_an_answer_that_is_not_good_measures_nothing(word: str) -> None:
    async with connected(ScriptedEngine(word)) as stream:
        with pytest.raises(BenchFailed):
            async with asyncio.timeout(5):
                await stream.ask(BODY)


def test_a_step_beside_others_counts_each_round_once() -> None:
    watch = Stopwatch()
    for _ in range(3):
        with watch.step("one"):
            sum(range(10_000))
        with watch.step("other"):
            pass
    assert {name: len(spent) for name, spent in watch.spent_ns.items()} == {"one": 3, "other": 3}
    assert min(watch.spent_ns["one"]) > 0


def test_what_a_program_has_started_is_counted_with_it(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\ntry: input()\nexcept EOFError: pass"
    start = f"import subprocess as s, sys; s.Popen([sys.executable, '-c', {burn!r}], stdin=s.PIPE).wait()"
    command = [sys.executable, "-c", start]  # the end of its input, when this one ends, ends the other
    with spawned(command, tmp_path / "log") as program:
        deadline = time.monotonic() + 20
        while (spent := cpu_seconds(program.pid)) < 0.2 and time.monotonic() < deadline:
            time.sleep(0.02)
        both_mib = resident_mib(program.pid)
    assert spent >= 0.2
    assert both_mib > 8


def test_peers_are_columns_and_one_that_failed_says_so() -> None:
    cost = RequestCost(prompt_tokens=1000, requests=1, cpu_ms=4.0)
    ours = Compared(name="ours", requirement="", idle_mib=99.0, latency=(), request_cost=(cost,), chunk_cost=())
    other = Compared(
        name="other", requirement="x==1.2", idle_mib=0, latency=(), request_cost=(), chunk_cost=(), failed="it is gone"
    )
    where = machine("bench.peers")
    first, requests, *_ = sheets(Result(machine=where, compared=(ours, other)))
    assert requests.rows == [("1,000", "4.00", "–")]
    assert "other 1.2" in first.note
    assert "other: it is gone" in first.note

"""An answer that was paused and continued is the uninterrupted one, whatever it was writing when it was asked."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve.engines.sglang import Sglang
from serve.launcher import free_port
from serve.twin.machine import load_machine
from tests.pausing import Played, call_of, play
from tests.twin_server import WEATHER, Running, TwinProgram, twin_server

SPEED = 12.0
MOMENTS = 12
"""At which each case is paused."""
TEXT = "Grüße aus 東京, 你好 世界! 🎉👩‍🚀 One line.\n\nAnother  one, with 数字 and ünïcödé.\n" * 3
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
CALL = {"name": "get_weather", "arguments": {"city": "Zürich <b> & 東京\n" * 4, "days": 3}}


def wished(**twin: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "Tell me."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
        "custom_params": {"twin": twin},
    }


LONG = wished(text=TEXT * 6) | PLAIN
CASES: dict[str, dict[str, Any]] = {
    "text": wished(text=TEXT) | PLAIN,
    "text with tools": wished(text=TEXT, calls=[]) | PLAIN | {"tools": [WEATHER]},
    "reasoning": wished(reasoning=TEXT, text="So it is."),
    "reasoning, then text": wished(reasoning=TEXT[:60], text=TEXT[:90]),
    "reasoning, text, call": wished(reasoning=TEXT[:40], text=TEXT[:50], calls=[CALL]) | {"tools": [WEATHER]},
    "call": wished(calls=[CALL]) | PLAIN | {"tools": [WEATHER]},
    "two calls": wished(reasoning=TEXT[:30], calls=[CALL, CALL]) | {"tools": [WEATHER]},
    "cut at its cap": wished(text=TEXT) | PLAIN | {"max_tokens": 40},
}


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    async with twin_server(speed=SPEED) as running:
        yield running


@pytest.fixture
async def engine(twin: Running) -> AsyncIterator[Sglang]:
    adapter = Sglang(twin.url)
    yield adapter
    await twin.until_idle()
    await adapter.aclose()


def assert_same(paused: Played, whole: Played) -> None:
    """One stream, with one beginning, one end, and the same in between."""
    view, wanted = paused.seen, whole.seen
    assert (view.reasoning, view.content) == (wanted.reasoning, wanted.content)
    assert view.calls == wanted.calls
    assert (view.roles, view.dones, len(view.ids)) == (1, 1, 1)
    assert view.finishes == wanted.finishes
    (usage,), (wanted_usage,) = view.usage, wanted.usage
    assert {k: v for k, v in usage.items() if "details" not in k} == {
        k: v for k, v in wanted_usage.items() if "details" not in k
    }
    assert usage["completion_tokens_details"] == wanted_usage["completion_tokens_details"]
    assert len(view.extensions) == (1 if usage["prompt_tokens_details"]["cached_tokens"] else 0)
    assert not any("ids" in name for extension in view.extensions for name in extension)
    assert paused.told.flags == []
    assert paused.told.resumed == paused.pauses
    assert 1 <= paused.scheduler.started <= paused.pauses + 1  # a piece that was stopped in its prefill began nothing


@pytest.mark.parametrize("name", CASES)
async def test_it_may_be_paused_after_any_event(name: str, engine: Sglang) -> None:
    call = call_of(engine, CASES[name])
    whole = await play(engine, call)
    assert whole.pauses == 0
    events = whole.seen.events
    step = max(1, events // MOMENTS)
    pauses = 0
    for moment in range(0, events + 1, step):
        paused = await play(engine, call, [moment])
        assert_same(paused, whole)
        pauses += paused.pauses
    assert pauses >= (1 if "call" in name else events // step // 2)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(CASES)), moments=st.lists(st.integers(0, 60), min_size=2, max_size=6))
def test_it_may_be_paused_again_and_again(name: str, moments: list[int]) -> None:
    async def compare() -> None:
        async with twin_server(speed=SPEED) as twin:
            engine = Sglang(twin.url)
            call = call_of(engine, CASES[name])
            assert_same(await play(engine, call, moments), await play(engine, call))
            await twin.until_idle()
            await engine.aclose()

    asyncio.run(compare())


@pytest.mark.parametrize("name", CASES)
async def test_a_whole_answer_is_the_engines_own(name: str, engine: Sglang, twin: Running) -> None:
    body = {key: value for key, value in CASES[name].items() if key not in {"stream", "stream_options"}}
    looks = iter(range(6))

    def writes() -> bool:
        """It has had some time on the engine."""
        return twin.server.service.live > 0 and next(looks, None) is None

    paused = await play(engine, call_of(engine, body), whole=True, ask_when=writes)
    assert paused.pauses or name not in {"text", "reasoning"}  # the others may be over before
    got, wanted = msgspec.json.decode(paused.raw), (await twin.post("/v1/chat/completions", **body)).json()
    assert got["choices"] == wanted["choices"]
    for usage in (got["usage"], wanted["usage"]):
        usage.pop("prompt_tokens_details")  # the second asks what the first has left in the cache
    assert got["usage"] == wanted["usage"]
    assert got.keys() - {"sglext"} == wanted.keys() - {"metadata", "sglext"}


async def test_the_place_asked_for_again_is_as_large_as_what_was_written(engine: Sglang) -> None:
    paused = await play(engine, call_of(engine, LONG), [5, 10])
    claims = [claim for claim in paused.scheduler.claims if claim is not None]
    assert len(claims) == paused.pauses == 2
    prompt = paused.seen.usage[0]["prompt_tokens"]
    for claim in claims:  # the helper's claims tell what they were asked with
        assert claim.margin_tokens == prompt + claim.output_tokens
    assert 5 <= claims[0].output_tokens < claims[1].output_tokens


async def test_an_abort_without_effect_is_given_up(engine: Sglang, twin: Running) -> None:
    (await twin.client.put("/twin/faults", json=[{"kind": "lost_abort"}])).raise_for_status()
    call = call_of(engine, LONG)
    lost = await play(engine, call, [5], lost_after_s=0.05)
    assert (lost.pauses, lost.told.flags) == (0, ["pause_lost"])
    (await twin.client.put("/twin/faults", json=[])).raise_for_status()
    whole = await play(engine, call)
    assert lost.seen.content == whole.seen.content
    assert lost.seen.finishes == whole.seen.finishes


async def test_an_engine_that_was_restarted_meanwhile_goes_on_from_the_tokens() -> None:
    port = free_port()
    with ExitStack() as programs:
        first = programs.enter_context(TwinProgram("--speed", "4", port=port))
        first.wait_ready()

        def restart() -> None:
            """Once; the connection that is still kept open leads nowhere."""
            if first.process is not None and first.process.poll() is None:
                first.stop(signal.SIGKILL)
                programs.enter_context(TwinProgram("--speed", "4", port=port)).wait_ready()

        engine = Sglang(first.url)
        call = call_of(engine, CASES["reasoning"])
        restarted = await play(engine, call, [5], between=restart)
        whole = await play(engine, call)
        await engine.aclose()
    assert restarted.pauses == restarted.told.resumed >= 1
    assert restarted.seen.reasoning == whole.seen.reasoning
    assert restarted.seen.content == whole.seen.content
    assert restarted.seen.finishes == whole.seen.finishes
    assert restarted.seen.usage[0]["completion_tokens"] == whole.seen.usage[0]["completion_tokens"]


async def test_what_is_written_is_told_as_it_grows(engine: Sglang) -> None:
    answer = await play(engine, call_of(engine, wished(text="word " * 900) | PLAIN))
    told = answer.scheduler.wrote
    assert len(told) >= 4
    assert told == sorted(told)
    assert all(later - before >= 256 for before, later in zip([0, *told], told, strict=False))
    assert answer.scheduler.started == 1


async def test_one_that_is_stopped_in_its_prefill_has_not_begun() -> None:
    """Its end comes as an event, too. Taken for a first token, it made what followed look like the return of a context
    that had been computed, and quanta grew to minutes."""
    long = wished(text=TEXT) | PLAIN | {"messages": [{"role": "user", "content": TEXT * 150}]}
    async with twin_server(load_machine("rx7900xtx-tp2"), speed=SPEED) as slow:
        engine = Sglang(slow.url)
        ask_at = time.monotonic() + 0.4
        stopped = await play(engine, call_of(engine, long), ask_when=lambda: time.monotonic() > ask_at)
        await engine.aclose()
    assert stopped.pauses == 1
    (claim,) = stopped.scheduler.claims
    assert claim is not None
    assert claim.output_tokens == 0, "nothing was written yet"
    assert stopped.scheduler.started == 1
    assert stopped.seen.content == TEXT

"""An answer that was paused and continued is the uninterrupted one, whatever it was writing when it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from serve.engines.sglang import Sglang
from tests.pausing import Played, call_of, play
from tests.twin_server import WEATHER, Running, twin_server

SPEED = 8.0
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


CASES: dict[str, dict[str, Any]] = {
    "text": wished(text=TEXT) | PLAIN,
    "text with tools": wished(text=TEXT, calls=[]) | PLAIN | {"tools": [WEATHER]},
    "reasoning": wished(reasoning=TEXT, text="So it is."),
    "reasoning, then text": wished(reasoning=TEXT[:60], text=TEXT[:90]),
    "reasoning, text, call": wished(reasoning=TEXT[:40], text=TEXT[:50], calls=[CALL]) | {"tools": [WEATHER]},
    "call": wished(calls=[CALL]) | PLAIN | {"tools": [WEATHER]},
    "two calls": wished(calls=[CALL, CALL]) | {"tools": [WEATHER]},
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
    assert len(view.extensions) == 1
    assert not any("ids" in name for name in view.extensions[0])
    assert paused.told.flags == []
    assert paused.told.resumed == paused.pauses
    assert paused.scheduler.started == paused.pauses + 1


@pytest.mark.parametrize("name", CASES)
async def test_it_may_be_paused_after_any_event(name: str, engine: Sglang) -> None:
    call = call_of(engine, CASES[name])
    whole = await play(engine, call)
    assert whole.pauses == 0
    step = max(1, whole.seen.events // 25)
    pauses = 0
    for moment in range(0, whole.seen.events + 1, step):
        paused = await play(engine, call, [moment])
        assert_same(paused, whole)
        pauses += paused.pauses
    assert pauses >= whole.seen.events // step // 4 or "call" in name

"""W02 sse-comments: a comment of the engine's never becomes data, and unreadable data never reaches a client."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import chunks, deltas, metric, payloads, send
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W02").variants


async def test_W02_comments_and_bad_data(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, VARIANT.request)
        assert [delta.get("content") for delta in deltas(answer.content)] == ["A", "B", None]
        assert len(chunks(answer.content)) == 3
        assert payloads(answer.content)[-1] == "[DONE]"
        end = await governor.end()
        assert (end.state, end.finish_reason) == (TurnState.OK, "stop")
        assert end.flags == ("junk_events",)
        assert await metric(governor, 'governor_anomalies_total{flag="junk_events"}') == 1


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
async def test_W02_comments_inside_a_begun_stream_stay_comments(line_end: str, tmp_path: Path) -> None:
    raw = (
        'data: {"choices":[{"index":0,"delta":{"content":"A"},"finish_reason":null}]}\n\n'
        ": still here\n\n"
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        "data: [DONE]\n\n"
    ).replace("\n", line_end)
    steps = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        {"text": raw, "piece_bytes": 7},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat(stream=True)
        assert answer.content == raw.encode()
        assert (await governor.end()).state is TurnState.OK

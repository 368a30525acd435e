"""W09 no-replay-after-bytes: a request that may have been accepted is sent once; only a refused connection is tried
again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from governor.errors import UpstreamCut
from governor.schedule.events import EngineMode
from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import chunks, payloads, send, text
from tests.harness import governed
from tests.scenario import load_case

CASE = load_case("W09")


async def test_W09_cut_after_bytes_is_an_error_inside_the_stream(tmp_path: Path) -> None:
    variant = CASE.variant("after-bytes")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.status_code == 200
        assert "onetwothree".startswith(text(answer.content))  # a reset may overtake what was sent before it
        assert text(answer.content).count("one") == 1
        assert chunks(answer.content)[-1]["error"]["code"] == UpstreamCut.code
        assert "[DONE]" not in payloads(answer.content)
        assert len(engine.hits) == 1
        end = await governor.end()
        assert (end.state, end.error_code) == (TurnState.UPSTREAM_ERROR, UpstreamCut.code)
        await governor.assert_idle()


async def test_W09_reset_before_bytes_is_not_replayed(tmp_path: Path) -> None:
    variant = CASE.variant("before-bytes")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, UpstreamCut.code)
        assert len(engine.hits) == 1
        assert text((await send(governor, variant.request)).content) == "Hello"
        assert [end.state for end in await governor.ends()] == [TurnState.UPSTREAM_ERROR, TurnState.OK]


async def test_W09_done_alone_is_no_answer(tmp_path: Path) -> None:
    variant = CASE.variant("done-only-then-cut")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        first = await send(governor, variant.request)
        assert (first.status_code, first.json()["error"]["code"]) == (502, UpstreamCut.code)
        second = await send(governor, variant.request)
        assert "[DONE]" not in payloads(second.content)
        assert len(engine.hits) == 2
        assert [end.state for end in await governor.ends()] == [TurnState.UPSTREAM_ERROR] * 2


async def test_W09_refused_connection_is_tried_again_when_the_engine_is_back(tmp_path: Path) -> None:
    knobs = Knobs(model="m")
    async with ScriptedEngine("say:back", knobs=knobs) as gone:
        port = urlsplit(gone.url).port or 0
        async with governed(gone.url, tmp_path) as governor:
            await gone.aclose()
            asked = asyncio.create_task(governor.chat())
            while governor.governor.watch.mode is not EngineMode.COMING:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with ScriptedEngine("say:back", knobs=knobs, port=port) as engine:
                answer = await asked
                assert answer.json()["choices"][0]["message"]["content"] == "back"
                assert len(engine.hits) == 1
                assert (await governor.end()).state is TurnState.OK
                await governor.assert_idle()

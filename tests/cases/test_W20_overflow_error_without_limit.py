"""W20 overflow-error-without-limit: an overflow always names the real limit, and the smaller window counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.runtime import RuntimeConfig
from governor.types import TurnState
from serve.scripted import Behaviour, Knobs, Overflow, ScriptedEngine
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W20").variants
ENGINE_WINDOW = 40_960
CONFIGURED = RuntimeConfig(window_tokens=65_536)


async def test_W20_limit_is_added_to_the_engines_text(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, VARIANT.request)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert f"maximum context length is {ENGINE_WINDOW} tokens" in error["message"]
        assert "Input is too large." in error["message"]
        end = await governor.end()
        assert (end.state, end.error_code, end.window_tokens) == (
            TurnState.REFUSED,
            "context_length_exceeded",
            ENGINE_WINDOW,
        )


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("wording", Overflow)
async def test_W20_every_engines_wording_becomes_ours(wording: Overflow, stream: bool, tmp_path: Path) -> None:
    engine = ScriptedEngine(Behaviour(overflow=wording), knobs=Knobs(model="m", window_tokens=ENGINE_WINDOW))
    async with engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat(stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert f"maximum context length is {ENGINE_WINDOW} tokens" in answer.json()["error"]["message"]
        assert len(engine.hits) == 1


async def test_W20_small_window_is_shown_where_no_client_looks(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with (
        VARIANT.engine() as engine,
        governed(engine.url, tmp_path, config=CONFIGURED) as governor,
        governor.client() as client,
    ):
        for path in ("/v1/models", "/v1/models/m"):
            listed = (await client.get(path)).json()
            card = listed["data"][0] if path == "/v1/models" else listed
            assert card["governor"]["window_tokens"] == ENGINE_WINDOW
            assert "max_model_len" not in card
        snapshot = await governor.snapshot()
        assert snapshot.engine.window_tokens == ENGINE_WINDOW
        assert [alert for alert in snapshot.alerts if "65536" in alert and "40960" in alert] == list(snapshot.alerts)


@pytest.mark.parametrize(
    ("engine_window", "configured", "effective"),
    [(131_072, None, 131_072), (131_072, 65_536, 65_536), (65_536, 131_072, 65_536), (None, 65_536, 65_536)],
)
async def test_W20_smaller_window_is_advertised(
    engine_window: int | None, configured: int | None, effective: int, tmp_path: Path
) -> None:
    knobs = Knobs(model="m", window_tokens=engine_window or 131_072, advertise_window=engine_window is not None)
    config = RuntimeConfig(window_tokens=configured)
    async with (
        ScriptedEngine(knobs=knobs) as engine,
        governed(engine.url, tmp_path, config=config) as governor,
        governor.client() as client,
    ):
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert (card["max_model_len"], card["governor"]["window_tokens"]) == (effective, effective)
        disagree = None not in (engine_window, configured)
        assert len((await governor.snapshot()).alerts) == disagree


async def test_W20_limits_derive_from_the_effective_window(tmp_path: Path) -> None:
    """A prompt that fits 65,536 but not 40,960 is refused here; one that fits is clamped to 40,960."""
    engine = ScriptedEngine("window_check", knobs=Knobs(model="m", window_tokens=ENGINE_WINDOW))
    async with engine, governed(engine.url, tmp_path, config=CONFIGURED) as governor:
        over = await governor.chat(messages=[{"role": "user", "content": "interoperability " * 45_000}])
        assert (over.status_code, over.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert f"maximum context length is {ENGINE_WINDOW} tokens" in over.json()["error"]["message"]
        assert not engine.hits
        fits = await governor.chat(messages=[{"role": "user", "content": "word " * 10_000}], max_tokens=65_536)
        assert fits.status_code == 200
        assert 10_000 + sent_body(engine.hits[0].body)["max_tokens"] <= ENGINE_WINDOW

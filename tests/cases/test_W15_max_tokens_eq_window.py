"""W15 max-tokens-eq-window: a client that asks for the whole window as output is clamped, and told so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from governor.types import TurnState
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W15").variants
WINDOW = 262_144
ROOMY = {"alice": f"output.final = {WINDOW}\n"}


async def test_W15_cap_is_clamped_to_what_is_left(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path, policies=ROOMY) as governor:
        answer = await send(governor, VARIANT.request)
        assert answer.status_code == 200
        prompt_tokens = answer.json()["usage"]["prompt_tokens"]
        sent = sent_body(engine.hits[0].body)["max_tokens"]
        end = await governor.end()
        assert sent == end.cap_applied
        assert sent + prompt_tokens <= WINDOW
        counted, margin = end.prompt_tokens_counted, end.prompt_tokens_margin
        assert counted is not None
        assert margin is not None
        assert sent == WINDOW - counted - margin
        assert abs(counted - prompt_tokens) <= margin
        assert answer.headers["x-governor-cap"] == f"{WINDOW} -> {sent} (window)"
        assert (end.cap_requested, end.cap_reason, end.state) == (WINDOW, "window", TurnState.OK)


async def test_W15_policy_cap_counts_before_the_window(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, VARIANT.request)
        assert sent_body(engine.hits[0].body)["max_tokens"] == 16384
        assert re.fullmatch(r"262144 -> 16384 \(policy\)", answer.headers["x-governor-cap"])


@pytest.mark.parametrize("asked", [1, 15, 16, 100])
async def test_W15_small_caps_are_not_raised(asked: int, tmp_path: Path) -> None:
    assert VARIANT.request is not None
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path, policies=ROOMY) as governor:
        answer = await send(governor, VARIANT.request, max_tokens=asked)
        assert answer.status_code == 200
        assert "x-governor-cap" not in answer.headers
        assert sent_body(engine.hits[0].body)["max_tokens"] == asked
        assert (await governor.end()).edits == ()

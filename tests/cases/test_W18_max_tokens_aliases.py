"""W18 max-tokens-aliases: one effective cap, the smallest of those given and the policy's, in one spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from governor.types import TurnState
from serve.engine import Endpoint
from serve.scripted import Behaviour, Knobs, ScriptedEngine
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import CaseRequest, load_case

(VARIANT,) = load_case("W18").variants
POLICY = {"alice": "output.final = 800\n"}
CAP_KEYS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"}

_ASKS: dict[Endpoint, dict[str, Any]] = {
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Endpoint.MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    Endpoint.RESPONSES: {"model": "m", "input": "hi"},
}
_OWN_KEY = {
    Endpoint.COMPLETIONS: "max_tokens",
    Endpoint.MESSAGES: "max_tokens",
    Endpoint.RESPONSES: "max_output_tokens",
}
_GIVEN = ((500, 500), (9000, 800), (None, 800), ("500", 400), (0, 400), (-5, 400), (1.5, 400), (True, 400))


async def test_W18_table(tmp_path: Path) -> None:
    assert VARIANT.request is not None
    refused = 0
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path, policies=POLICY) as governor:
        for row in VARIANT.rows:
            answer = await send(governor, VARIANT.request, **row["in"])
            if "status" in row:
                refused += 1
                assert answer.status_code == row["status"], row
                assert answer.json()["error"]["param"] in row["in"]
                continue
            assert answer.status_code == 200, row
            body = sent_body(engine.hits[-1].body)
            assert [body[key] for key in CAP_KEYS & body.keys()] == [row["cap"]], row
        assert len(engine.hits) == len(VARIANT.rows) - refused
        assert [end.state for end in await governor.ends()].count(TurnState.REFUSED) == refused


async def test_W18_other_dialects(tmp_path: Path) -> None:
    async with (
        ScriptedEngine("record", knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path, policies=POLICY) as governor,
    ):
        for endpoint, ask in _ASKS.items():
            key = _OWN_KEY[endpoint]
            for given, outcome in _GIVEN:
                hits = len(engine.hits)
                request = CaseRequest(method="POST", path=endpoint.value, body=ask | {key: given})
                answer = await send(governor, request)
                if outcome == 400:
                    assert (answer.status_code, len(engine.hits)) == (400, hits), (endpoint, given)
                    continue
                assert answer.status_code == 200, (endpoint, given)
                body = sent_body(engine.hits[-1].body)
                assert {name: body[name] for name in CAP_KEYS & body.keys()} == {key: outcome}


async def test_W18_a_cut_answer_says_length(tmp_path: Path) -> None:
    behaviour = Behaviour(say=2000)
    async with (
        ScriptedEngine(behaviour, knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path, policies=POLICY) as governor,
    ):
        answer = await governor.chat(max_completion_tokens=9000)
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        end = await governor.end()
        assert (end.state, end.finish_reason) == (TurnState.TRUNCATED, "length")
        assert end.usage.completion_tokens == 800

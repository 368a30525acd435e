"""W31 steer-between-call-and-result, the gateway's half: passed on as it is, or moved behind the results by policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

(VARIANT,) = load_case("W31").variants
assert VARIANT.request is not None
REQUEST = VARIANT.request
QUESTION, CALLS, STEER, FOUND = REQUEST.body["messages"]
REPAIR = {"alice": 'request.interleaved = "repair"\n'}


def _two_results() -> list[dict[str, Any]]:
    """The same, with results on both sides of the user's word."""
    second = CALLS["tool_calls"][0] | {"id": "s2"}
    calls = CALLS | {"tool_calls": [*CALLS["tool_calls"], second]}
    return [QUESTION, calls, FOUND, STEER, FOUND | {"tool_call_id": "s2"}]


async def test_W31_off_the_engines_error_comes_back_unchanged(tmp_path: Path) -> None:
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, REQUEST)
        assert answer.status_code == 400
        async with governor.client(None) as client:
            direct = await client.post(f"{engine.url}/v1/chat/completions", content=REQUEST.content())
        assert direct.status_code == 400
        assert direct.json()["error"]["message"] in answer.text
        assert sent_body(engine.hits[0].body)["messages"] == REQUEST.body["messages"]


async def test_W31_repaired_and_the_same_on_the_next_turn(tmp_path: Path) -> None:
    for number, messages in enumerate((REQUEST.body["messages"], _two_results())):
        root = tmp_path / str(number)
        async with VARIANT.engine() as engine, governed(engine.url, root, policies=REPAIR) as governor:
            more = [*messages, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "and now?"}]
            for turn in (messages, more):
                assert (await send(governor, REQUEST, messages=turn)).status_code == 200
            first, second = (hit.body for hit in engine.hits)
            repaired = [each for each in messages if each is not STEER] + [STEER]
            assert sent_body(first)["messages"] == repaired
            assert sent_body(second)["messages"] == repaired + more[len(messages) :]
            opening = first.index(b'"messages"')
            last = first.index(b"]", first.index(b"stop, use the other one"))
            assert first[opening:last] in second
            for end in await governor.ends():
                assert f"1 user message moved behind {number + 1} result{'s' * number}" in end.edits

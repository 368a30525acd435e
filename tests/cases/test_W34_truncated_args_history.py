"""W34 truncated-args-history: broken tool arguments pass as the text they are, there and back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from governor.types import TurnState
from tests.cases.play import chunks, send
from tests.harness import governed
from tests.scenario import CaseRequest, load_case

CASE = load_case("W34")


def _messages_bytes(request: CaseRequest) -> bytes:
    return msgspec.json.encode(request.body["messages"])


async def test_W34_two_turns(tmp_path: Path) -> None:
    variant = CASE.variant("two-turns")
    first, second = variant.requests
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        cut = await send(governor, first)
        finishes = [choice.get("finish_reason") for chunk in chunks(cut.content) for choice in chunk["choices"]]
        assert [finish for finish in finishes if finish] == ["length"]
        assert cut.content == bytes(engine.hits[0].body_sent)
        replayed = await send(governor, second)
        assert replayed.status_code == 200
        assert _messages_bytes(second) in engine.hits[1].body
        ends = await governor.ends()
        assert [end.state for end in ends] == [TurnState.TRUNCATED, TurnState.OK]
        assert ends[0].finish_reason == "length"
        assert "answer_lost_to_reasoning" not in ends[0].flags
        assert ends[1].prompt_tokens_counted is not None


async def test_W34_replayed_over_a_tight_window(tmp_path: Path) -> None:
    """Counting takes the arguments as opaque text, also where the exact size decides."""
    variant = CASE.variant("two-turns")
    messages = [*variant.requests[1].body["messages"], {"role": "user", "content": "long words " * 3000}]
    async with (
        variant.engine(window_tokens=1024) as engine,
        governed(engine.url, tmp_path) as governor,
    ):
        answer = await send(governor, variant.requests[1], messages=messages)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert not engine.hits


async def test_W34_empty_arguments(tmp_path: Path) -> None:
    variant = CASE.variant("empty-args")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        assert (await send(governor, variant.request)).status_code == 200
        assert _messages_bytes(variant.request) in engine.hits[0].body
        assert b'"arguments":""' in engine.hits[0].body
        assert (await governor.end()).state is TurnState.OK

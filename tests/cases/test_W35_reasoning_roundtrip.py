"""W35 reasoning-roundtrip: reasoning in the history is kept to the byte, or taken out of every turn by policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import load_case

CASE = load_case("W35")
STRIP = {"alice": "request.strip_reasoning = true\n"}


async def test_W35_kept_by_default(tmp_path: Path) -> None:
    variant = CASE.variant("keep")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        assert (await send(governor, variant.request)).status_code == 200
        assert msgspec.json.encode(variant.request.body["messages"]) in engine.hits[0].body
        assert b"TULIP" in engine.hits[0].body
        assert (await governor.end()).state is TurnState.OK


async def test_W35_engine_that_forbids_it(tmp_path: Path) -> None:
    variant = CASE.variant("forbid")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path / "pass") as governor:
        assert (await send(governor, variant.request)).status_code == 400
    async with variant.engine() as engine, governed(engine.url, tmp_path / "strip", policies=STRIP) as governor:
        assert (await send(governor, variant.request)).status_code == 200
        expected = [dict(message) for message in variant.request.body["messages"]]
        del expected[1]["reasoning_content"]
        assert msgspec.json.encode(expected) in engine.hits[0].body
        assert "messages" in (await governor.end()).edits


async def test_W35_stripping_is_the_same_on_every_turn(tmp_path: Path) -> None:
    """Both names, whatever the spelling around them; the prefix of turn 1 is the prefix of turn 2."""
    first = (
        b'{"role":"user","content":"caf\\u00e9"}',
        b'{"role":"assistant", "reasoning":"r", "content":"caf\\u00e9", "score":1.50 }',
    )
    second = (*first, b'{"role":"user","content":"b"}', b'{"role":"assistant","content":null,"reasoning_content":"x"}')
    kept = b'{"role":"assistant", "content":"caf\\u00e9", "score":1.50 }'
    async with (
        ScriptedEngine("forbid_reasoning_content", knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path, policies=STRIP) as governor,
        governor.client() as client,
    ):
        for messages in (first, second):
            body = b'{"model":"m","max_tokens":9,"messages":[' + b",".join(messages) + b"]}"
            answer = await client.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 200
        assert engine.hits[0].body == b'{"model":"m","max_tokens":9,"messages":[' + first[0] + b"," + kept + b"]}"
        assert engine.hits[1].body.startswith(engine.hits[0].body.removesuffix(b"]}"))
        assert sent_body(engine.hits[1].body)["messages"][-1] == {"role": "assistant", "content": None}


async def test_W35_thinking_blocks_and_reasoning_parts_pass(tmp_path: Path) -> None:
    thinking = {"type": "thinking", "thinking": "codeword TULIP", "signature": "c2ln=="}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "sun"}]},
        {"role": "user", "content": "sure?"},
    ]
    parts = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [{"type": "reasoning", "text": "codeword TULIP"}]},
        {"role": "user", "content": "sure?"},
    ]
    async with (
        ScriptedEngine("record", knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path) as governor,
        governor.client() as client,
    ):
        await client.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": history})
        await client.post("/v1/chat/completions", json={"model": "m", "max_tokens": 9, "messages": parts})
        assert sent_body(engine.hits[0].body)["messages"] == history
        assert sent_body(engine.hits[1].body)["messages"] == parts
        assert [end.edits for end in await governor.ends()] == [(), ()]

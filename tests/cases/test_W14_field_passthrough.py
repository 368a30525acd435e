"""W14 field-passthrough: what the policy does not name reaches the engine as it came; drops are listed and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import CaseRequest, load_case

(VARIANT,) = load_case("W14").variants
_EDITED = {"max_tokens", "stream_options"}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_W14_many_fields(stream: bool, tmp_path: Path) -> None:
    assert VARIANT.request is not None
    extra: dict[str, Any] = {
        "logprobs": -1,
        "cache_salt": "tenant-1",
        "stream": stream,
        "vendor": {"π": 1.50, "big": 12345678901234567890},
    }
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, VARIANT.request, **extra)
        assert answer.status_code == 200
        assert "x-governor-dropped" not in answer.headers
        client_body = msgspec.json.encode(VARIANT.request.body | extra)
        edits = b',"max_tokens":16384' + (b',"stream_options":{"include_usage":true}' if stream else b"")
        assert engine.hits[0].body == client_body[:-1] + edits + b"}"
        end = await governor.end()
        assert set(end.edits) == (_EDITED if stream else {"max_tokens"})


async def test_W14_unedited_request_is_the_same_bytes(tmp_path: Path) -> None:
    raw = (
        b'\n{ "model" : "m","max_tokens":1e2 ,"x":[1.0, "\\u00e9"],"max_tokens_":null,\t'
        b'"messages":[ {"content":"hi" , "role":"user"} ] }\r\n'
    ).replace(b"1e2", b"100")
    async with ScriptedEngine("record", knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        async with governor.client() as client:
            answer = await client.post(
                "/v1/chat/completions", content=raw, headers={"content-type": "application/json; charset=utf-8"}
            )
        assert answer.status_code == 200
        assert engine.hits[0].body == raw
        assert (await governor.end()).edits == ()


async def test_W14_all_choices_are_relayed_and_metered(tmp_path: Path) -> None:
    def event(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"sse": {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}}

    steps: list[dict[str, Any]] = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        *(event(0, "a"), event(1, "x"), event(1, "y", "stop"), event(0, "b", "length")),
        {"sse": {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}},
        {"data": "[DONE]"},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat(stream=True, n=2, stream_options={"include_usage": True})
        assert answer.content == bytes(engine.hits[0].body_sent)
        end = await governor.end()
        assert end.usage.completion_tokens == 4
        assert end.state is TurnState.TRUNCATED


async def test_W14_engines_drop_list_is_told_in_header_and_row(tmp_path: Path) -> None:
    """llama.cpp obeys ``n_predict`` beside ``max_tokens``, so it never reaches that engine."""
    slots = [{"status": 200, "headers": {"Content-Type": "application/json"}}, {"json": [{"id": 0}]}, {"close": "fin"}]
    request = CaseRequest(
        method="POST",
        path="/v1/chat/completions",
        body={"model": "m", "n_predict": 50000, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    )
    engine = ScriptedEngine("record", by_path={"/slots": [slots]}, knobs=Knobs(model="m"))
    async with engine, governed(engine.url, tmp_path, engine_kind="llamacpp") as governor:
        answer = await send(governor, request)
        assert answer.status_code == 200
        assert answer.headers["x-governor-dropped"] == "n_predict"
        (hit,) = (hit for hit in engine.hits if hit.path == request.path)
        assert sent_body(hit.body) == {name: value for name, value in request.body.items() if name != "n_predict"}
        assert (await governor.end()).edits == ("-n_predict",)

"""W10 stale-encoding-headers: headers describe the bytes they come with, on answers, errors and rewritten requests."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import pytest

from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import send, sent_body, text
from tests.harness import governed
from tests.scenario import load_case

CASE = load_case("W10")


async def test_W10_gzip_200(tmp_path: Path) -> None:
    variant = CASE.variant("gzip-200")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.json()["choices"][0]["message"]["content"] == "packed"
        assert "content-encoding" not in answer.headers
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert "transfer-encoding" not in answer.headers
        assert engine.hits[0].headers["accept-encoding"] == "identity"
        assert (await governor.end()).state is TurnState.OK


async def test_W10_gzip_400(tmp_path: Path) -> None:
    variant = CASE.variant("gzip-400")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        answer = await send(governor, variant.request)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "bad request text"
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert "content-encoding" not in answer.headers


async def test_W10_gzip_stream(tmp_path: Path) -> None:
    events = (
        b'data: {"choices":[{"index":0,"delta":{"content":"packed"},"finish_reason":null}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        b"data: [DONE]\n\n"
    )
    steps = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}},
        {"b64": base64.b64encode(gzip.compress(events)).decode(), "piece_bytes": 9},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat(stream=True)
        assert answer.content == events
        assert text(answer.content) == "packed"
        assert "content-encoding" not in answer.headers
        assert "content-length" not in answer.headers
        assert (await governor.end()).state is TurnState.OK


@pytest.mark.parametrize("encoding", ["br", "zstd", "x-invented"])
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
async def test_W10_codings_we_do_not_read_pass_raw_with_their_header(
    encoding: str, status: int, media_type: str, tmp_path: Path
) -> None:
    raw = b"\x28\xb5\x2f\xfd not text \x00\xff"
    steps: list[dict[str, Any]] = [
        {"status": status, "headers": {"Content-Type": media_type, "Content-Encoding": encoding}},
        {"b64": base64.b64encode(raw).decode()},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        async with (
            governor.client() as client,
            client.stream("POST", "/v1/chat/completions", json={"model": "m", "messages": _HI}) as answer,
        ):
            body = b"".join([piece async for piece in answer.aiter_raw()])
        assert (answer.status_code, body) == (status, raw)
        assert answer.headers["content-encoding"] == encoding
        assert int(answer.headers["content-length"]) == len(raw)
        assert "transfer-encoding" not in answer.headers
        end = await governor.end()
        assert end.state is (TurnState.OK if status == 200 else TurnState.UPSTREAM_ERROR)
        assert end.usage.prompt_tokens is None


_HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
async def test_W10_rewritten_request_has_its_own_length(packed: bool, tmp_path: Path) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1000000}'
    headers = {"content-type": "application/json"} | ({"content-encoding": "gzip"} if packed else {})
    async with ScriptedEngine("record", knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        async with governor.client() as client:
            answer = await client.post(
                "/v1/chat/completions", content=gzip.compress(body) if packed else body, headers=headers
            )
        assert answer.status_code == 200
        (hit,) = engine.hits
        assert len(hit.body) < len(body)
        assert int(hit.headers["content-length"]) == len(hit.body)
        assert "transfer-encoding" not in hit.headers
        assert "content-encoding" not in hit.headers
        assert sent_body(hit.body)["max_tokens"] == 16384


async def test_W10_hop_by_hop_headers_stop_here(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {
            "status": 200,
            "headers": {
                "Content-Type": "application/json",
                "Keep-Alive": "timeout=9",
                "Upgrade": "h2c",
                "X-Secret": "s",
            },
        },
        {"json": {"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]}},
        {"close": "fin"},
    ]
    async with ScriptedEngine(steps, knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path) as governor:
        answer = await governor.chat()
        assert answer.status_code == 200
        assert not {"keep-alive", "upgrade", "x-other", "transfer-encoding"} & set(answer.headers)

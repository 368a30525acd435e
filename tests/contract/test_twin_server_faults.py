"""What goes wrong on purpose, as the adapter and its clients see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from governor.errors import UpstreamCut
from governor.wire.sse import SseSplitter
from serve.engine import Endpoint, EngineCall
from serve.engines.sglang import Sglang
from serve.twin_server.script import parse_script
from tests.twin_server import Running, twin_server

TURN = "t-0123456789abcdef"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "rid": f"{TURN}---0000"}
LONG = {**BODY, "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    async with twin_server() as running:
        yield running


@pytest.fixture
async def engine(twin: Running) -> AsyncIterator[Sglang]:
    adapter = Sglang(twin.url)
    yield adapter
    await adapter.aclose()


async def put(twin: Running, *faults: dict[str, Any]) -> None:
    (await twin.client.put("/twin/faults", json=list(faults))).raise_for_status()


def call(body: dict[str, Any]) -> EngineCall:
    return EngineCall(endpoint=Endpoint.CHAT, body=msgspec.json.encode(body), turn_id=TURN)


async def read(engine: Sglang, body: dict[str, Any], into: bytearray | None = None) -> tuple[int, bytes]:
    """Status and body, which is also in ``into`` as far as it came."""
    got = bytearray() if into is None else into
    async with engine.open(call(body)) as answer:
        async for chunk in answer.chunks():
            got += chunk
        return answer.status, bytes(got)


async def test_faults_are_replaced_and_told(twin: Running) -> None:
    await put(twin, {"kind": "delay", "seconds": 1})
    await put(twin, {"kind": "cut", "every": 2})
    (told,) = (await twin.client.get("/twin/faults")).json()
    assert (told["kind"], told["every"]) == ("cut", 2)
    wrong = await twin.client.put("/twin/faults", json=[{"kind": "cut", "after_token": 2}])
    assert wrong.status_code == 400
    assert "after_token" in wrong.json()["message"]


async def test_silence_before_the_head_is_in_the_twins_seconds(twin: Running, engine: Sglang) -> None:
    await put(twin, {"kind": "delay", "seconds": 16})
    began = time.monotonic()
    assert (await read(engine, BODY | {"max_tokens": 1}))[0] == 200
    assert 0.4 <= time.monotonic() - began < 2


@pytest.mark.parametrize("streams", [True, False])
async def test_a_cut(streams: bool, twin: Running, engine: Sglang) -> None:
    await put(twin, {"kind": "cut", "after_tokens": 20, "times": 1})
    got = bytearray()
    with pytest.raises(UpstreamCut):
        await read(engine, BODY | {"stream": streams, "max_tokens": 400, "ignore_eos": True}, got)
    assert b"[DONE]" not in got
    if streams:
        assert b'"role":"assistant"' in got
    await twin.until_idle()
    assert (await read(engine, BODY))[0] == 200


async def test_an_error_in_the_stream(twin: Running, engine: Sglang) -> None:
    await put(twin, {"kind": "error_frame", "after_tokens": 5, "message": "it broke", "status": 500})
    status, got = await read(engine, LONG)
    said = [event.data for event in SseSplitter().feed(got) if event.data]
    assert (status, said[-1]) == (200, b"[DONE]")
    error = msgspec.json.decode(said[-2])["error"]
    assert (error["message"], error["code"], error["type"]) == ("it broke", 500, "INTERNAL_SERVER_ERROR")
    await twin.until_idle()
    assert (await read(engine, BODY))[0] == 500


async def test_a_refusal(twin: Running) -> None:
    await put(twin, {"kind": "http_error", "status": 429, "message": "later", "retry_after_s": 7, "every": 2})
    answers = [await twin.post("/v1/chat/completions", **BODY) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 429]
    assert (answers[1].headers["retry-after"], answers[1].json()["message"]) == ("7", "later")
    messages = await twin.post("/v1/messages", messages=BODY["messages"], max_tokens=1)
    refused = await twin.post("/v1/messages", messages=BODY["messages"], max_tokens=1)
    assert (messages.status_code, refused.status_code, refused.json()["type"]) == (200, 429, "error")


async def test_a_lost_abort_leaves_it_running_until_its_client_is_missed(twin: Running, engine: Sglang) -> None:
    await put(twin, {"kind": "lost_abort", "times": 1})
    async with engine.open(call(LONG)) as answer:
        async for _ in answer.chunks():
            break
    # The adapter's abort was answered and had no effect; SGLang looks for lost streams two seconds after their end.
    assert twin.server.service.counters.aborts == 0
    await twin.until_idle(2)
    assert twin.server.service.counters.aborts == 1


async def test_a_dead_scheduler_is_seen_behind_a_server_that_answers(twin: Running, engine: Sglang) -> None:
    assert await engine.is_ready()
    await put(twin, {"kind": "dead_scheduler", "first": 2})
    assert (await read(engine, BODY | {"max_tokens": 2}))[0] == 200
    waiting = asyncio.create_task(read(engine, BODY | {"max_tokens": 2}))
    async with asyncio.timeout(5):
        while not twin.server.service.is_dead:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    published = twin.server.service.published.at
    assert (await twin.client.get("/v1/models")).status_code == 200
    assert (await twin.client.get("/health_generate")).status_code == 503  # after 20 seconds of the twin
    with pytest.raises(httpx.ReadTimeout):
        await twin.client.get("/server_info", timeout=0.2)
    assert twin.server.service.published.at == published
    assert not waiting.done()
    await put(twin)
    assert (await waiting)[0] == 200
    assert (await twin.client.get("/health_generate")).status_code == 200
    assert twin.server.service.published.at > published


async def test_a_slow_start_is_not_ready() -> None:
    script = parse_script('[[faults]]\nkind = "slow_start"\nseconds = 20', "slow.toml")
    async with twin_server(script=script, speed=10) as twin:
        assert (await twin.client.get("/health")).status_code == 503
        assert (await twin.client.get("/ready")).status_code == 503
        await asyncio.sleep(2)
        assert (await twin.client.get("/health")).status_code == 200
        assert (await twin.client.get("/ready")).status_code == 200


SCRIPT = """
[[rule]]
name = "weather"
match = { last_user = "weather", agent = "alice" }
[rule.answer]
reasoning = "It rains there."
text = "Take an umbrella."
[[rule.faults]]
kind = "http_error"
first = 2
times = 1

[[rule]]
match = { turn = 2 }
[rule.answer]
text = "As I said."
"""


async def test_a_script_decides_by_words_agent_and_turn() -> None:
    async with twin_server(script=parse_script(SCRIPT, "script.toml")) as twin:
        ask: dict[str, Any] = {"messages": [{"role": "user", "content": "the weather?"}], "user": "alice"}
        first = await twin.chat(**ask)
        assert first["choices"][0]["message"]["content"].strip() == "Take an umbrella."
        assert (await twin.post("/v1/chat/completions", **ask)).status_code == 503
        assert (await twin.post("/v1/chat/completions", **ask)).status_code == 200
        other = await twin.chat(messages=ask["messages"], user="bob")
        assert other["choices"][0]["message"]["content"].strip() != "Take an umbrella."
        said = [{"role": "assistant", "content": "Hm."}, {"role": "user", "content": "And?"}]
        second = await twin.chat(messages=[*ask["messages"], *said], user="bob")
        assert second["choices"][0]["message"]["content"].strip() == "As I said."

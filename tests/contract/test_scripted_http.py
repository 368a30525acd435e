"""The scripted engine on the wire: exact bytes, single writes, cuts, resets, clients that leave."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx
import msgspec
import pytest

from serve.scripted import Hit, ScriptedEngine
from tests.scenario import CaseVariant, all_cases, load_case

_CHAT = "/v1/chat/completions"
_BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
_SSE = {"status": 200, "headers": {"Content-Type": "text/event-stream"}}
_TOKENS = [_SSE, {"tokens": 1000, "interval_ms": 5}]

_PLAYABLE = [
    pytest.param(variant, id=f"{case.id}-{variant.v}")
    for case in all_cases()
    for variant in case.variants
    if isinstance(variant.stub, list) and not any("tokens" in step or "hang" in step for step in variant.stub)
]


async def _raw(engine: ScriptedEngine, body: object = _BODY, path: str = _CHAT) -> tuple[list[bytes], bool]:
    """Reads of a plain socket until the answer's connection ends, and whether it ended in a reset."""
    reader, writer = await _send(engine, body, path)
    reads: list[bytes] = []
    try:
        while data := await reader.read(65536):
            reads.append(data)
    except ConnectionResetError:
        return reads, True
    finally:
        writer.close()
    return reads, False


async def _send(
    engine: ScriptedEngine, body: object = _BODY, path: str = _CHAT
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = engine.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = msgspec.json.encode(body)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("variant", _PLAYABLE)
async def test_a_client_reads_exactly_what_the_steps_say(variant: CaseVariant) -> None:
    assert isinstance(variant.stub, list)
    request = variant.all_requests()[0]
    ends_well = variant.stub[-1] == {"close": "fin"}
    async with variant.engine() as engine, httpx.AsyncClient() as client:
        received = b""
        try:
            async with client.stream(request.method, engine.url + request.path, content=request.content()) as response:
                async for chunk in response.aiter_raw():
                    received += chunk
        except (httpx.ReadError, httpx.RemoteProtocolError):
            assert not ends_well
        else:
            assert ends_well
        await engine.wait_idle()
    (hit,) = engine.hits
    assert hit.body == request.content()
    assert received == bytes(hit.body_sent)


async def test_a_declared_length_is_that_of_the_bytes() -> None:
    async with load_case("W10").variant("gzip-200").engine() as engine, httpx.AsyncClient() as client:
        response = await client.post(engine.url + _CHAT, json=_BODY)
    assert response.json()["choices"][0]["message"]["content"] == "packed"
    assert "transfer-encoding" not in response.headers


async def test_flushed_pieces_are_writes_of_their_own() -> None:
    script = [{**_SSE, "framing": "close"}, {"text": "cafés", "piece_bytes": 1}, {"close": "fin"}]
    async with ScriptedEngine(script) as engine:
        reads, was_reset = await _raw(engine)
    assert not was_reset
    assert b"".join(reads).endswith(b"\r\n\r\n" + "cafés".encode())
    assert len(reads) > len("cafés") // 2, "the writes were merged"


async def test_a_cut_leaves_the_body_open_and_an_end_closes_it() -> None:
    for ending, tail in (("cut", b"1\r\nx\r\n"), ("fin", b"1\r\nx\r\n0\r\n\r\n")):
        async with ScriptedEngine([_SSE, {"text": "x"}, {"close": ending}]) as engine:
            reads, was_reset = await _raw(engine)
        assert not was_reset
        assert b"".join(reads).endswith(b"\r\n\r\n" + tail)


async def test_a_reset_comes_after_what_was_written() -> None:
    async with ScriptedEngine([_SSE, {"text": "x"}, {"close": "rst"}]) as engine:
        reads, was_reset = await _raw(engine)
        assert was_reset
        assert b"".join(reads).endswith(b"1\r\nx\r\n")
    async with ScriptedEngine([{"close": "rst"}]) as engine:
        assert await _raw(engine) == ([], True)


async def test_the_nth_request_gets_the_nth_answer_and_the_last_repeats() -> None:
    async with ScriptedEngine("503", "say:one", "say:two") as engine, httpx.AsyncClient() as client:
        answers = [await client.post(engine.url + _CHAT, json=_BODY) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [503, 200, 200, 200]
    assert ["one" in answer.text for answer in answers[1:]] == [True, False, False]
    assert len(engine.hits) == 4


async def test_paths_can_have_answers_of_their_own() -> None:
    script = [{"status": 200, "headers": {"Content-Length": "2"}}, {"text": "{}"}]
    async with ScriptedEngine(by_path={"/props": [script]}) as engine, httpx.AsyncClient() as client:
        assert (await client.get(engine.url + "/props")).json() == {}
        assert (await client.get(engine.url + "/version")).status_code == 404
    assert [hit.path for hit in engine.hits] == ["/props"]
    assert [hit.path for hit in engine.probes] == ["/version"]


async def test_headers_are_kept_as_they_came() -> None:
    async with ScriptedEngine("record") as engine, httpx.AsyncClient() as client:
        await client.post(engine.url + _CHAT + "?q=1", content=b'{"messages":[]}', headers={"X-Odd-Case": "v"})
    (hit,) = engine.hits
    assert ("X-Odd-Case", "v") in hit.raw_headers
    assert hit.headers["x-odd-case"] == "v"
    assert (hit.target, hit.path) == (_CHAT + "?q=1", _CHAT)
    assert hit.body == b'{"messages":[]}'


async def test_keep_alive_and_pipelined_requests() -> None:
    body = b'{"messages":[]}'
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (_CHAT.encode(), len(body), body)
    async with ScriptedEngine("say:one", "say:two") as engine:
        host, _, port = engine.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request * 2)
        text = b""
        while b"two" not in text:
            text += await reader.read(65536)
        writer.close()
    assert text.index(b"one") < text.index(b"two")


async def test_what_is_not_http_is_refused() -> None:
    async with ScriptedEngine() as engine:
        host, _, port = engine.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
    assert engine.hits == []


@pytest.mark.parametrize("path", [_CHAT, "/v1/messages", "/v1/responses"])
async def test_a_client_that_leaves_ends_the_generation(path: str) -> None:
    body: dict[str, Any] = {**_BODY, "max_tokens": 5000}
    async with ScriptedEngine(_TOKENS) as engine:
        reader, writer = await _send(engine, body, path)
        await reader.readuntil(b"tok ")
        left_at = time.monotonic()
        writer.close()
        await engine.wait_idle()
    (hit,) = engine.hits
    assert hit.peer_closed_at is not None
    assert 0 <= hit.peer_closed_at - left_at < 0.5
    assert hit.tokens_sent_after(left_at) <= 3
    assert hit.tokens_sent_after_close == 0
    assert hit.tokens_sent < 1000
    assert hit.ended_at is None


async def test_a_client_that_leaves_before_the_head() -> None:
    async with ScriptedEngine([{"hang": 60}]) as engine:
        _, writer = await _send(engine)
        await engine.wait_for(lambda: len(engine.hits) == 1)
        writer.close()
        await engine.wait_for(lambda: engine.hits[0].peer_closed_at is not None)
        await engine.wait_idle()
    assert engine.hits[0].status is None


async def test_a_client_that_resets_is_noticed() -> None:
    async with ScriptedEngine(_TOKENS) as engine:
        reader, writer = await _send(engine)
        await reader.readuntil(b"tok ")
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        writer.transport.abort()
        await engine.wait_idle()
    assert engine.hits[0].peer_closed_at is not None


async def test_a_client_that_stays_is_not_called_gone() -> None:
    answered: list[Hit] = []
    async with ScriptedEngine("say", on_answered=answered.append) as engine:
        async with httpx.AsyncClient() as client:
            await client.post(engine.url + _CHAT, json=_BODY)
        await asyncio.sleep(0.02)
    assert answered == engine.hits
    assert engine.hits[0].peer_closed_at is None
    assert engine.hits[0].ended_at is not None


async def test_stopping_the_engine_is_not_the_clients_leaving() -> None:
    async with ScriptedEngine(_TOKENS) as engine:
        reader, writer = await _send(engine)
        await reader.readuntil(b"tok ")
    assert engine.open_hits == 0
    assert engine.hits[0].peer_closed_at is None
    writer.close()


async def test_a_slow_reader_holds_the_engine_back() -> None:
    """Only what the kernel took counts as sent, so a gateway cannot be credited with the engine's own buffer."""
    async with ScriptedEngine([{**_SSE, "framing": "close"}, {"tokens": 200_000}]) as engine:
        reader, writer = await _send(engine)
        await engine.wait_for(lambda: bool(engine.hits) and engine.hits[0].tokens_sent > 0)
        hit, sent_before = engine.hits[0], -1
        while hit.bytes_sent != sent_before:
            sent_before = hit.bytes_sent
            await asyncio.sleep(0.1)
    assert hit.tokens_sent < 200_000
    received = await reader.read()
    writer.close()
    assert len(received) >= hit.bytes_sent


@pytest.mark.parametrize("stream", [True, False])
async def test_scripted_tokens_make_a_whole_answer(stream: bool) -> None:
    kind = "text/event-stream" if stream else "application/json"
    script = [{"status": 200, "headers": {"Content-Type": kind}}, {"tokens": 3}]
    async with ScriptedEngine(script) as engine, httpx.AsyncClient() as client:
        response = await client.post(engine.url + _CHAT, json={**_BODY, "stream": stream})
    if stream:
        assert response.text.count('"content":"tok "') == 3
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["choices"][0]["message"]["content"] == "tok tok tok "
    assert engine.hits[0].tokens_sent == 3


async def test_many_streams_at_once() -> None:
    async with (
        ScriptedEngine("say") as engine,
        httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as client,
    ):
        answers = await asyncio.gather(*(client.post(engine.url + _CHAT, json=_BODY) for _ in range(64)))
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert engine.open_hits == 0

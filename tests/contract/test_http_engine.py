"""The HTTP half of every engine adapter, on real sockets: how a call ends is told in our errors, and at once."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from governor.errors import UpstreamCut, UpstreamTimeout, UpstreamUnavailable
from serve.engine import Endpoint, EngineCall
from serve.engines.http import HttpEngine, HttpTimeouts

CALL = EngineCall(endpoint=Endpoint.CHAT, body=b'{"model":"m"}')
QUICK = HttpTimeouts(connect_s=2.0, answer_s=0.3, ask_s=0.3)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = b"9\r\ndata: a\n\n\r\n"
LAST = b"0\r\n\r\n"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine_that(answer: Answer, *, fresh_connections: bool, timeouts: HttpTimeouts) -> AsyncIterator[HttpEngine]:
    """An adapter of a server that reads a request and then does this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(CALL.body)
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    engine = HttpEngine("test", f"http://127.0.0.1:{port}", fresh_connections=fresh_connections, timeouts=timeouts)
    try:
        yield engine
    finally:
        await engine.aclose()
        server.close()
        await server.wait_closed()


@pytest.fixture(params=[False, True], ids=["kept connections", "fresh connections"])
def fresh(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def whole(engine: HttpEngine) -> bytes:
    async with engine.open(CALL) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


async def test_a_refused_connection_is_unavailable(fresh: bool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        engine = HttpEngine("test", url, fresh_connections=fresh)
        with pytest.raises(UpstreamUnavailable):
            await whole(engine)
        await engine.aclose()


async def test_a_reset_before_the_head_is_a_cut(fresh: bool) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with engine_that(reset, fresh_connections=fresh, timeouts=QUICK) as engine:
        with pytest.raises(UpstreamCut):
            await whole(engine)


async def test_a_close_before_the_head_is_a_cut(fresh: bool) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with engine_that(leave, fresh_connections=fresh, timeouts=QUICK) as engine:
        with pytest.raises(UpstreamCut):
            await whole(engine)


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + FIRST], ids=["nothing", "a head", "a chunk"])
async def test_silence_is_a_timeout(sent: bytes, fresh: bool) -> None:
    async def fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await reader.read()

    async with engine_that(fall_silent, fresh_connections=fresh, timeouts=QUICK) as engine:
        with pytest.raises(UpstreamTimeout):
            await whole(engine)


@pytest.mark.parametrize(
    "cut",
    [HEAD + FIRST, HEAD + FIRST[:5], b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata", b"HTTP/1.1 200 OK\r\nConte"],
    ids=["between chunks", "in a chunk", "in a body of known length", "in the head"],
)
async def test_a_body_that_breaks_off_is_a_cut(cut: bytes, fresh: bool) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(cut)
        await writer.drain()

    async with engine_that(break_off, fresh_connections=fresh, timeouts=QUICK) as engine:
        with pytest.raises(UpstreamCut):
            await whole(engine)


async def test_what_is_no_http_is_a_cut(fresh: bool) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 smtp.example.org ESMTP\r\n\r\n")

    async with engine_that(babble, fresh_connections=fresh, timeouts=QUICK) as engine:
        with pytest.raises(UpstreamCut):
            await whole(engine)


async def test_chunks_come_as_they_are_sent(fresh: bool) -> None:
    """The second chunk is sent only when the first one was received."""
    received = asyncio.Event()

    async def by_and_by(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + FIRST)
        await received.wait()
        writer.write(FIRST + LAST)

    async with engine_that(by_and_by, fresh_connections=fresh, timeouts=QUICK) as engine:
        seen = []
        async with engine.open(CALL) as answer:
            async for chunk in answer.chunks():
                seen.append(chunk)
                received.set()
    assert seen == [b"data: a\n\n"] * 2


@pytest.mark.parametrize("after", ["the head", "a chunk"])
async def test_leaving_the_block_closes_the_connection_at_once(after: str, fresh: bool) -> None:
    closed_at = asyncio.get_running_loop().create_future()

    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + FIRST)
        with suppress(ConnectionError):
            await reader.read()
        closed_at.set_result(time.monotonic())

    async with engine_that(go_on, fresh_connections=fresh, timeouts=HttpTimeouts()) as engine:
        async with engine.open(CALL) as answer:
            if after == "a chunk":
                assert await anext(aiter(answer.chunks())) == b"data: a\n\n"
        left_at = time.monotonic()
        assert await asyncio.wait_for(closed_at, 5) - left_at < 0.1


async def test_a_cancelled_call_closes_the_connection_at_once(fresh: bool) -> None:
    closed_at = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def think(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        closed_at.set_result(time.monotonic())

    async with engine_that(think, fresh_connections=fresh, timeouts=HttpTimeouts()) as engine:
        task = asyncio.create_task(whole(engine))
        await asked.wait()
        left_at = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await asyncio.wait_for(closed_at, 5) - left_at < 0.1


async def test_no_pool_limits_how_many_stream_at_once(fresh: bool) -> None:
    """More than the 100 that both httpx and aiohttp allow if not told otherwise."""
    count = 150
    let_go = asyncio.Event()

    async def wait_for_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + FIRST)
        await let_go.wait()
        writer.write(LAST)

    async with (
        engine_that(wait_for_all, fresh_connections=fresh, timeouts=HttpTimeouts()) as engine,
        AsyncExitStack() as stack,
        asyncio.timeout(20),
    ):
        answers = [await stack.enter_async_context(engine.open(CALL)) for _ in range(count)]
        let_go.set()
        bodies = [b"".join([chunk async for chunk in answer.chunks()]) for answer in answers]
    assert bodies == [b"data: a\n\n"] * count

"""What passes from one call of an adapter to the next: no connection, no cookie. How calls end has its own tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from serve.engine import Endpoint, EngineCall
from serve.engines.http import HttpEngine
from serve.engines.llamacpp import LlamaCpp
from serve.engines.openai_upstream import OpenAIUpstream
from serve.scripted import ScriptedEngine

_CALL = EngineCall(endpoint=Endpoint.CHAT, body=b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
_ADAPTERS = {"llamacpp": LlamaCpp, "upstream": lambda url: OpenAIUpstream("upstream", url)}


async def _answer(adapter: HttpEngine) -> bytes:
    async with adapter.open(_CALL) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


@pytest.mark.parametrize("adapter_of", _ADAPTERS.values(), ids=_ADAPTERS)
async def test_no_request_goes_into_a_connection_that_was_used(adapter_of: Callable[[str], HttpEngine]) -> None:
    """This server closes on the second request of a connection, as one does that was about to close anyway."""
    ports: list[int] = []
    closed = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(_CALL.body))
            ports.append(writer.get_extra_info("peername")[1])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await reader.read(1)
        writer.close()
        closed.release()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        adapter = adapter_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(3):
            assert await _answer(adapter) == b"ok"
            async with asyncio.timeout(1):
                await closed.acquire()
        await adapter.aclose()
    assert len(set(ports)) == 3


async def test_no_cookie_of_one_agent_goes_with_another() -> None:
    steps = [{"status": 200, "headers": {"Set-Cookie": "session=alice; Path=/"}}, {"text": "ok"}]
    async with ScriptedEngine(steps, host="localhost") as engine:
        adapter = OpenAIUpstream("upstream", engine.url)
        for _ in range(2):
            assert await _answer(adapter) == b"ok"
        await adapter.aclose()
        assert "cookie" not in engine.hits[1].headers

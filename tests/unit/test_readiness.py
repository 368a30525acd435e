"""The HTTP probe against a real socket that loads, answers, hangs and breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from serve.readiness import HttpProbe, ProbeResult


class Listener:
    """Answers each path with the bytes given for it; ``None`` means: accept and stay silent."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | None] = {}
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Listener:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        answer = self.answers.get(head.split()[1].decode())
        if answer is None:
            return
        writer.write(answer)
        await writer.drain()
        writer.close()
        self._open.discard(writer)


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with Listener() as listener:
        yield listener


async def check(listener: Listener) -> ProbeResult:
    probe = HttpProbe(f"http://127.0.0.1:{listener.port}", timeout_s=0.3)
    try:
        return await probe.check()
    finally:
        await probe.aclose()


async def test_loading_is_an_answer_with_a_reason(listener: Listener) -> None:
    listener.answers["/health"] = http("503 Service Unavailable", '{"error":{"message":"Loading model","code":503}}')
    assert await check(listener) == ProbeResult(ready=False, loading=True, detail="Loading model")
    listener.answers["/health"] = http("503 Service Unavailable", "<html>")
    assert await check(listener) == ProbeResult(ready=False, loading=True, detail="loading")


async def test_ready_brings_figures_where_there_are_any(listener: Listener) -> None:
    listener.answers = {"/health": http("200 OK", "{}"), "/slots": http("200 OK", '[{"n_prompt_tokens":512}]')}
    assert await check(listener) == ProbeResult(ready=True, fingerprint='[{"n_prompt_tokens":512}]')
    listener.answers["/slots"] = None
    assert await check(listener) == ProbeResult(ready=True)


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (None, "no answer to a health check: busy"),
        (http("500 Oops", ""), "health check answered 500"),
        (b"garbage\r\n\r\n", "health check failed"),
    ],
)
async def test_everything_else_is_not_ready_and_raises_nothing(
    listener: Listener, answer: bytes | None, detail: str
) -> None:
    listener.answers["/health"] = answer
    result = await check(listener)
    assert not result.ready
    assert not result.loading
    assert result.detail.startswith(detail)


async def test_nobody_listens() -> None:
    async with Listener() as gone:
        pass
    assert (await check(gone)).detail == "not listening yet"

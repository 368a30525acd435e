"""W60 body-url-ssrf: a request cannot say where it goes. Targets and their keys come from the owner alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from serve.scripted import Knobs, ScriptedEngine
from tests.cases.play import send
from tests.harness import governed
from tests.scenario import CaseRequest, load_case

CASE = load_case("W60")
ENGINE_KEY = "key-of-the-engine"


@asynccontextmanager
async def canary() -> AsyncIterator[tuple[str, list[int]]]:
    """A listener nobody may connect to: its address, and the connections it saw."""
    seen: list[int] = []

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        writer.close()

    async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}", seen


def pointed_at(request: CaseRequest, address: str) -> CaseRequest:
    text = msgspec.json.encode(request).replace(b"127.0.0.1:CANARY", address.encode())
    return msgspec.json.decode(text, type=CaseRequest)


@pytest.mark.parametrize("name", [variant.v for variant in CASE.variants])
async def test_W60(tmp_path: Path, name: str) -> None:
    variant = CASE.variant(name)
    assert variant.request is not None
    async with (
        canary() as (address, connections),
        variant.engine() as engine,
        governed(engine.url, tmp_path, engine_key=ENGINE_KEY) as gov,
    ):
        answer = await send(gov, pointed_at(variant.request, address))
        assert answer.status_code == 200
        assert not connections
        [hit] = engine.hits
        assert hit.target == "/v1/chat/completions"
        assert hit.headers["authorization"] == f"Bearer {ENGINE_KEY}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_W60_an_engine_cannot_send_us_elsewhere(tmp_path: Path, status: int) -> None:
    async with canary() as (address, connections):
        moved = [{"status": status, "headers": {"Location": f"http://{address}/", "Content-Length": "0"}}]
        async with ScriptedEngine(moved, knobs=Knobs(model="m")) as engine:
            async with governed(engine.url, tmp_path, engine_key=ENGINE_KEY) as gov:
                answer = await gov.chat()
            assert answer.status_code == 502
            assert "location" not in answer.headers
            assert not connections

"""What the adapter of llama.cpp's server reads of its answers, which are shortened here."""

from __future__ import annotations

import asyncio

import msgspec

from serve.engine import EngineLoad
from serve.engines.llamacpp import LlamaCpp

SLOTS = [
    {"id": 0, "n_ctx": 8192, "is_processing": True, "id_task": 7, "n_prompt_tokens": 3000},
    {"id": 1, "n_ctx": 8192, "is_processing": False, "id_task": 3, "n_prompt_tokens": 5000},
    {"id": 2, "n_ctx": 8192, "is_processing": False},
]


async def test_what_lies_in_an_idle_slot_is_not_in_use() -> None:
    body = msgspec.json.encode(SLOTS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        assert asked.startswith(b"GET /slots ")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        engine = LlamaCpp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await engine.load() == EngineLoad(running=1, kv_used_tokens=3000, kv_capacity_tokens=24_576)
        await engine.aclose()

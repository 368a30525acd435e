"""What the case tests share: send a case's request over a real socket, and read its answer as a strict client would."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from tests.harness import Governed
from tests.scenario import CaseRequest

_JSON = {"content-type": "application/json"}


async def send(governor: Governed, request: CaseRequest, agent: str = "alice", **body: Any) -> httpx.Response:
    """Send the request and read the whole answer; ``body`` sets or replaces fields."""
    async with governor.client(agent) as client:
        content = msgspec.json.encode(request.body | body)
        return await client.request(request.method, request.path, content=content, headers=_JSON)


async def leave(
    governor: Governed, request: CaseRequest, client: Mapping[str, float], body: dict[str, Any] | None = None
) -> float:
    """Send the request and close the connection in the middle, as ``client`` says. Returns the time of the close."""
    after_bytes = int(client.get("disconnect_after_bytes", 0))
    after_chunks = int(client.get("disconnect_after_chunks", 0))
    seen = bytearray()
    async with governor.client() as http:
        content = msgspec.json.encode(request.body | (body or {}))
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(client.get("disconnect_after_s")),
                http.stream(request.method, request.path, content=content, headers=_JSON) as answer,
            ):
                async for piece in answer.aiter_raw():
                    seen += piece
                    if (after_bytes and len(seen) >= after_bytes) or (
                        after_chunks and seen.count(b"\n\n") >= after_chunks
                    ):
                        break
    return time.monotonic()


def payloads(stream: bytes) -> list[str]:
    """Data of each event, by the letter of the SSE standard."""
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    found, data = [], list[str]()
    for line in text.split("\n"):
        if not line:
            if data:
                found.append("\n".join(data))
            data = []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
    return found


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """Every event but the closing ``[DONE]``. Raises ``msgspec.DecodeError`` on data that is not JSON."""
    return [msgspec.json.decode(payload, type=dict[str, Any]) for payload in payloads(stream) if payload != "[DONE]"]


def deltas(stream: bytes) -> list[dict[str, Any]]:
    """The deltas of a chat stream, in order."""
    return [choice["delta"] for chunk in chunks(stream) for choice in chunk.get("choices") or () if "delta" in choice]


def text(stream: bytes) -> str:
    """The visible text of a chat stream."""
    return "".join(delta.get("content") or "" for delta in deltas(stream))


def sent_body(hit_body: bytes) -> dict[str, Any]:
    """A request body as the engine got it."""
    return msgspec.json.decode(hit_body, type=dict[str, Any])


async def metric(governor: Governed, line: str) -> float:
    """The value of one series of ``/metrics``, by its name and labels as written there; 0 where it is absent."""
    async with governor.client(None) as client:
        page = (await client.get("/metrics")).raise_for_status().text
    for shown in page.splitlines():
        if shown.startswith(line + " "):
            return float(shown.rpartition(" ")[2])
    return 0.0

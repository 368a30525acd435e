"""W62 decompression-bomb: what counts is the decoded size, and it is bounded while decoding."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from governor.gateway.body import BodyLimits
from governor.gateway.relay import AnswerLimits
from governor.runtime import RuntimeConfig
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import Governed, governed

CAP_BYTES = 8 * 1024 * 1024
GROWTH_BYTES = CAP_BYTES + 16 * 1024 * 1024
PATH = "/v1/chat/completions"
GOOD = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CONFIG = RuntimeConfig(
    body_limits=BodyLimits(max_bytes=CAP_BYTES), answer_limits=AnswerLimits(max_plain_bytes=CAP_BYTES)
)


def bomb(decoded_bytes: int) -> bytes:
    """gzip of so many zeros, made without making them: deflate blocks that end in a full flush can be repeated."""
    block = 16 * 1024 * 1024
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = deflater.compress(bytes(block)) + deflater.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + piece * (decoded_bytes // block)


class Memory:
    """How far the resident memory of this process rises above what it was."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._figure("VmRSS")

    def growth(self) -> int:
        return self._figure("VmHWM") - self._before

    def _figure(self, name: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine:
        yield engine


@pytest.fixture
async def gov(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    async with governed(engine.url, tmp_path, config=CONFIG) as gov:
        yield gov


async def post(gov: Governed, body: bytes, encoding: str | None) -> httpx.Response:
    headers = {"content-type": "application/json"} | ({"content-encoding": encoding} if encoding else {})
    async with gov.client() as client:
        return await client.post(PATH, content=body, headers=headers)


async def test_W62_a_bomb_is_refused_early_while_others_are_served(gov: Governed, engine: ScriptedEngine) -> None:
    packed = bomb(2 * 1024**3)
    assert len(packed) < CAP_BYTES
    memory, started = Memory(), time.monotonic()
    answer, beside = await asyncio.gather(post(gov, packed, "gzip"), gov.chat())
    assert time.monotonic() - started < 1.0
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert memory.growth() < GROWTH_BYTES
    assert beside.status_code == 200
    assert len(engine.hits) == 1


ODD = {
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(16_000), "zstd", 415),
    "brotli": (GOOD, "br", 415),
    "double": (gzip.compress(gzip.compress(GOOD)), "gzip, gzip", 415),
    "members joined": (gzip.compress(GOOD) + gzip.compress(bytes(1000)), "gzip", 400),
    "trailing bytes": (gzip.compress(GOOD) + b"x", "gzip", 400),
    "cut short": (gzip.compress(GOOD)[:-9], "gzip", 400),
    "not gzip": (GOOD, "gzip", 400),
    "gzip inside gzip": (gzip.compress(gzip.compress(GOOD)), "gzip", 400),
    "brackets": (b"[" * 100_000, None, 400),
    "brackets inside": (GOOD[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, 400),
    "brackets packed": (gzip.compress(b'{"a":' * 100_000), "gzip", 400),
    "plain over the cap": (GOOD[:-1] + b',"x":"' + b"y" * CAP_BYTES + b'"}', None, 413),
}


@pytest.mark.parametrize("name", ODD)
async def test_W62_odd_bodies(gov: Governed, engine: ScriptedEngine, name: str) -> None:
    body, encoding, status = ODD[name]
    started = time.monotonic()
    answer = await post(gov, body, encoding)
    assert time.monotonic() - started < 1.0
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert not engine.hits
    await gov.assert_idle()


async def test_W62_chunked_without_a_length(gov: Governed, engine: ScriptedEngine) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * (CAP_BYTES // 10)

    async with gov.client() as client:
        answer = await client.post(PATH, content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert not engine.hits


async def test_W62_a_packed_body_is_unpacked(gov: Governed, engine: ScriptedEngine) -> None:
    assert (await post(gov, gzip.compress(GOOD), "gzip")).status_code == 200
    [hit] = engine.hits
    assert hit.body.startswith(GOOD[:-1])
    assert "content-encoding" not in hit.headers


@pytest.mark.parametrize("packed", [True, False])
async def test_W62_an_engines_answer_is_bounded_too(tmp_path: Path, packed: bool) -> None:
    body = bomb(512 * 1024 * 1024) if packed else b" " * (2 * CAP_BYTES)
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if packed else {})
    script = [{"status": 200, "headers": headers}, {"b64": base64.b64encode(body).decode()}]
    knobs = Knobs(model="m", keep_bodies=False)
    async with ScriptedEngine(script, knobs=knobs) as engine, governed(engine.url, tmp_path, config=CONFIG) as gov:
        memory = Memory()
        answer = await gov.chat()
        assert answer.status_code == 502
        assert memory.growth() < 4 * GROWTH_BYTES
        await gov.assert_idle()

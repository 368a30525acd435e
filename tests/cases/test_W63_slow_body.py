"""W63 slow-body: who dribbles holds nothing. Deadlines are for the whole of a part, not for each piece of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from governor.gateway.body import BodyLimits
from governor.gateway.relay import AnswerLimits
from governor.runtime import RuntimeConfig
from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import Governed, governed
from tests.rawhttp import RawSocket, answers_in, connected, request_bytes

DEADLINE_S = 1.0
SOCKETS = 300
CONFIG = RuntimeConfig(
    head_deadline_s=DEADLINE_S,
    body_limits=BodyLimits(deadline_s=DEADLINE_S),
    answer_limits=AnswerLimits(event_deadline_s=DEADLINE_S, plain_deadline_s=DEADLINE_S),
)


@pytest.fixture
async def gov(tmp_path: Path) -> AsyncIterator[Governed]:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path, config=CONFIG) as gov:
        yield gov


Attack = Callable[[Governed, RawSocket], Coroutine[Any, Any, None]]


async def dribble(raw: RawSocket, data: bytes) -> None:
    for at in range(len(data)):
        await raw.send(data[at : at + 1])
        await asyncio.sleep(DEADLINE_S / 4)


async def head(gov: Governed, raw: RawSocket) -> None:
    await dribble(raw, b"POST /v1/chat/completions HTTP/1.1\r\n")


async def no_body(gov: Governed, raw: RawSocket) -> None:
    key = gov.keys["alice"]
    await raw.send(request_bytes("/v1/chat/completions", key=key, headers={"content-length": "1000"}))


async def slow_body(gov: Governed, raw: RawSocket) -> None:
    await no_body(gov, raw)
    await dribble(raw, b" " * 1000)


async def slow_chunks(gov: Governed, raw: RawSocket) -> None:
    chunked = {"transfer-encoding": "chunked", "x-length": "none"}
    start = request_bytes("/v1/chat/completions", key=gov.keys["alice"], headers=chunked)
    await raw.send(start.replace(b"content-length: 0\r\n", b""))
    await dribble(raw, b"1\r\n \r\n" * 1000)


@pytest.mark.parametrize("attack", [head, no_body, slow_body, slow_chunks])
async def test_W63_half_open_requests_are_cut_and_others_served(gov: Governed, attack: Attack) -> None:
    async def one() -> tuple[int, float]:
        async with connected(gov.url) as raw:
            started = time.monotonic()
            sending = asyncio.create_task(attack(gov, raw))
            [answer] = answers_in(await raw.read_to_end(timeout_s=20))
            took = time.monotonic() - started
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            return answer.status, took

    async def normal_client() -> float:
        slowest = 0.0
        for _ in range(10):
            started = time.monotonic()
            assert (await gov.chat()).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
        return slowest

    attackers = asyncio.gather(*(one() for _ in range(SOCKETS)))
    await asyncio.sleep(0.1)
    assert gov.governor.admission.running == gov.governor.admission.waiting == gov.governor.book.open_turns == 0
    assert await normal_client() < DEADLINE_S
    results = await attackers
    assert {status for status, _ in results} == {408}
    assert max(took for _, took in results) < DEADLINE_S + 1.5
    await gov.assert_idle()
    assert len(await gov.rows()) == 10


UPSTREAM = {
    "stream": ("text/event-stream", 'data: {"x":"'),
    "plain": ("application/json", '{"x":"'),
}


@pytest.mark.parametrize("name", UPSTREAM)
async def test_W63_an_engine_that_dribbles_for_ever(tmp_path: Path, name: str) -> None:
    content_type, opening = UPSTREAM[name]
    dribbled = [{"text": "y", "flush": True}, {"sleep": DEADLINE_S / 10}] * 100
    script = [{"status": 200, "headers": {"Content-Type": content_type}}, {"text": opening}, *dribbled]
    knobs = Knobs(model="m")
    async with ScriptedEngine(script, knobs=knobs) as engine, governed(engine.url, tmp_path, config=CONFIG) as gov:
        started = time.monotonic()
        answer = await gov.chat(stream=name == "stream")
        assert time.monotonic() - started < DEADLINE_S + 1.0
        assert answer.status_code == 504
        await engine.wait_idle(1.0)
        await gov.assert_idle()
        end = await gov.end()
        assert (end.state, end.error_code) == (TurnState.UPSTREAM_ERROR, "upstream_timeout")

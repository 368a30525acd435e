"""A client connection: what waits for the client has a deadline, and what does not is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from governor.gateway.connection import MAX_HEAD_BYTES
from governor.runtime import RuntimeConfig
from governor.types import TurnState
from serve.scripted import Behaviour, Knobs, ScriptedEngine
from tests.harness import Governed, governed
from tests.rawhttp import answers_in, connected, request_bytes

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = BODY[:-1] + b',"stream":true}'
HEAD_DEADLINE_S = 0.3


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine:
        yield engine


@pytest.fixture
async def gov(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    config = RuntimeConfig(head_deadline_s=HEAD_DEADLINE_S, stall_deadline_s=0.3)
    async with governed(engine.url, tmp_path, config=config) as gov:
        yield gov
        await gov.assert_idle()


def chat(gov: Governed, body: bytes = BODY) -> bytes:
    return request_bytes(CHAT, body, key=gov.keys["alice"])


async def test_an_idle_connection_outlives_the_head_deadline(gov: Governed) -> None:
    async with connected(gov.url) as raw:
        for _ in range(3):
            await raw.send(chat(gov))
            await raw.read_until(b"}}")
            await asyncio.sleep(2 * HEAD_DEADLINE_S)
    assert [end.state for end in await gov.ends()] == [TurnState.OK] * 3


async def test_a_body_may_take_longer_than_the_head_deadline(gov: Governed) -> None:
    async with connected(gov.url) as raw:
        body = b"x" * 200_000
        await raw.send(request_bytes(CHAT, key=gov.keys["alice"], headers={"content-length": str(len(BODY) + 200_000)}))
        await raw.send(BODY[:-1] + b',"user":"')
        await asyncio.sleep(2 * HEAD_DEADLINE_S)
        await raw.send(body[: 200_000 - 10] + b'"}')
        assert b" 200 OK" in await raw.read_until(b"}}")


@pytest.mark.parametrize("said", [b"", b"POST /v1/chat", b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"\r\n"])
async def test_a_head_that_does_not_come_is_answered_408_and_closed(gov: Governed, said: bytes) -> None:
    async with connected(gov.url) as raw:
        await raw.send(said)
        [answer] = answers_in(await raw.read_to_end())
    assert answer.status == 408
    assert msgspec.json.decode(answer.body)["error"]["code"] == "request_timeout"


async def test_a_dribbled_head_has_one_deadline_in_all(gov: Governed) -> None:
    async with connected(gov.url) as raw:
        started = asyncio.get_running_loop().time()
        for piece in (b"POST ", b"/v1/", b"chat", b"/com", b"pletions", b" HTTP/1.1\r\n"):
            await raw.send(piece)
            await asyncio.sleep(HEAD_DEADLINE_S / 5)
        [answer] = answers_in(await raw.read_to_end())
        took = asyncio.get_running_loop().time() - started
    assert answer.status == 408
    assert took < 3 * HEAD_DEADLINE_S


async def test_line_ends_between_requests_do_not_hold_a_connection(gov: Governed) -> None:
    async with connected(gov.url) as raw:
        await raw.send(chat(gov))
        await raw.read_until(b"}}")
        closed = asyncio.create_task(raw.read_to_end())
        for _ in range(10):
            await raw.send(b"\r\n")
            await asyncio.sleep(HEAD_DEADLINE_S / 5)
            if closed.done():
                break
        assert await closed == b""


async def test_a_body_nobody_waits_for_is_cut_at_the_deadline(gov: Governed) -> None:
    head = request_bytes(CHAT, headers={"content-length": "1000"})
    async with connected(gov.url) as raw:
        await raw.send(head)
        assert b" 401 " in await raw.read_until(b"}}")
        closed = asyncio.create_task(raw.read_to_end())
        for _ in range(20):
            await raw.send(b" ")
            await asyncio.sleep(HEAD_DEADLINE_S / 5)
            if closed.done():
                break
        assert await closed == b""


async def test_a_connection_serves_on_after_the_rest_of_a_refused_body(gov: Governed) -> None:
    async with connected(gov.url) as raw:
        await raw.send(request_bytes(CHAT, headers={"content-length": "1000"}) + b" " * 500)
        assert b" 401 " in await raw.read_until(b"}}")
        await raw.send(b" " * 500)
        await asyncio.sleep(2 * HEAD_DEADLINE_S)
        await raw.send(chat(gov))
        assert b" 200 OK" in await raw.read_until(b"}}")


@pytest.mark.parametrize("pieces", [1, 40])
async def test_an_endless_head_is_answered_431(gov: Governed, pieces: int) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n"
    async with connected(gov.url) as raw:
        for at in range(0, len(head), len(head) // pieces):
            try:
                await raw.send(head[at : at + len(head) // pieces])
            except ConnectionError:
                break
            await asyncio.sleep(0)
        [answer] = answers_in(await raw.read_to_end())
    assert answer.status == 431


async def test_a_long_head_within_the_limit_is_served(gov: Governed) -> None:
    async with connected(gov.url) as raw:
        await raw.send(request_bytes("/health", method="GET", headers={"x": "y" * (MAX_HEAD_BYTES - 1000)}))
        assert b" 200 OK" in await raw.read_until(b'"ok"}')


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00", b"GET /\xff HTTP/1.1\r\n\r\n", b"BREW / HTCPCP/1.0\r\n\r\n"])
async def test_what_is_not_http_is_answered_400_in_our_shape(gov: Governed, junk: bytes) -> None:
    async with connected(gov.url) as raw:
        await raw.send(junk)
        [answer] = answers_in(await raw.read_to_end())
    assert answer.status == 400
    assert msgspec.json.decode(answer.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "early", [b"POST /v1/ch", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x00junk\r\n\r\n"]
)
async def test_what_is_sent_before_its_turn_is_ignored_and_the_answer_stays_whole(tmp_path: Path, early: bytes) -> None:
    knobs = Knobs(model="m", head_delay_s=3 * HEAD_DEADLINE_S)
    config = RuntimeConfig(head_deadline_s=HEAD_DEADLINE_S)
    async with ScriptedEngine(knobs=knobs) as engine, governed(engine.url, tmp_path, config=config) as gov:
        async with connected(gov.url) as raw:
            await raw.send(chat(gov, STREAM) + early)
            await asyncio.sleep(HEAD_DEADLINE_S / 2)
            await raw.send(early)
            [answer] = answers_in(await raw.read_to_end())
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert (await gov.end()).state is TurnState.OK


@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_leaves_after_an_early_request_is_noticed(tmp_path: Path, reset: bool) -> None:
    knobs = Knobs(model="m")
    async with ScriptedEngine(Behaviour(hang_s=60), knobs=knobs) as engine, governed(engine.url, tmp_path) as gov:
        async with connected(gov.url) as raw:
            await raw.send(chat(gov) + request_bytes(CHAT, b" " * 100_000, key=gov.keys["alice"]))
            await engine.wait_for(lambda: bool(engine.hits))
            raw.leave(reset=reset)
            await engine.wait_idle(1.0)
        await gov.assert_idle()
        assert (await gov.end()).state is TurnState.CLIENT_ABORTED


async def test_a_client_that_stops_reading_does_not_hold_its_turn(tmp_path: Path) -> None:
    config = RuntimeConfig(stall_deadline_s=0.3)
    knobs = Knobs(model="m", keep_bodies=False)
    script = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        *[{"data": '{"choices":[{"delta":{"content":"' + "x" * 1_000_000 + '"}}]}'}] * 40,
    ]
    no_loops = {"alice": "[output]\nloop_chars = 0\n"}
    async with (
        ScriptedEngine(script, knobs=knobs) as engine,
        governed(engine.url, tmp_path, config=config, policies=no_loops) as gov,
    ):
        async with connected(gov.url) as raw:
            raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await raw.send(chat(gov, STREAM))
            await engine.wait_for(lambda: bool(engine.hits))
            await engine.wait_idle(3.0)
            await gov.assert_idle()
        assert (await gov.end()).state is TurnState.CLIENT_ABORTED


async def test_an_upgrade_is_refused_by_name(gov: Governed) -> None:
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    async with connected(gov.url) as raw:
        await raw.send(request_bytes(CHAT, BODY, key=gov.keys["alice"], headers=upgrade))
        [answer] = answers_in(await raw.read_to_end())
    assert answer.status == 400
    assert msgspec.json.decode(answer.body)["error"]["param"] == "upgrade"

"""The SGLang adapter where a real engine cannot be made to do what must be handled."""

from __future__ import annotations

import asyncio

import pytest

from governor.errors import UpstreamError, UpstreamUnavailable
from governor.types import AgentClass
from serve.engine import Endpoint, EngineCall, EngineLoad, TurnFacts
from serve.engines.sglang import Sglang
from tests.sglang_http import FakeSglang

TURN = "t-0123456789abcdef"
NAME = f"{TURN}---0000"
CALL = EngineCall(endpoint=Endpoint.CHAT, body=b'{"model":"m","stream":true}', turn_id=TURN)
FACTS = TurnFacts(turn_id=TURN, agent_class=AgentClass.INTERACTIVE, session="s-1")


async def read(engine: Sglang, call: EngineCall = CALL) -> bytes:
    async with engine.open(call) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


async def test_an_answer_that_was_read_is_not_aborted() -> None:
    async with FakeSglang() as fake:
        engine = Sglang(fake.url)
        assert (await read(engine)).endswith(b"[DONE]\n\n")
        await engine.aclose()
        assert fake.aborts == []


async def test_leaving_early_aborts_by_name_before_it_returns() -> None:
    async with FakeSglang() as fake:
        fake.ends = False
        engine = Sglang(fake.url)
        async with engine.open(CALL) as answer:
            async for _ in answer.chunks():
                break
        assert fake.aborts == [NAME]
        await engine.aclose()


@pytest.mark.parametrize("answers", [False, True], ids=["before the head", "in the stream"])
async def test_cancelling_aborts_by_name(answers: bool) -> None:
    async with FakeSglang() as fake:
        fake.answers, fake.ends = answers, False
        engine = Sglang(fake.url)
        reading = asyncio.create_task(read(engine))
        async with asyncio.timeout(5):
            while not fake.open_requests:  # noqa: ASYNC110 - the server is another task without an event
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert fake.aborts == [NAME]
        await engine.aclose()


async def test_a_part_of_a_turn_is_aborted_by_its_own_name() -> None:
    async with FakeSglang() as fake:
        engine = Sglang(fake.url)
        await engine.abort(EngineCall(endpoint=Endpoint.CHAT, body=b"{}", turn_id=TURN, part=12))
        await engine.aclose()
        assert fake.aborts == [f"{TURN}---0012"]


@pytest.mark.parametrize(
    "call",
    [EngineCall(endpoint=Endpoint.MESSAGES, body=b"{}", turn_id=TURN), EngineCall(endpoint=Endpoint.CHAT, body=b"{}")],
)
async def test_what_has_no_name_is_not_aborted_by_one(call: EngineCall) -> None:
    async with FakeSglang() as fake:
        engine = Sglang(fake.url)
        await engine.abort(call)
        await engine.aclose()
        assert fake.aborts == []


async def test_nobody_there_is_unavailable_and_nothing_is_aborted() -> None:
    engine = Sglang("http://127.0.0.1:9")
    with pytest.raises(UpstreamUnavailable):
        await read(engine)
    await engine.abort(CALL)
    assert not await engine.is_ready()
    assert await engine.load() == EngineLoad()
    await engine.aclose()


async def test_a_fresh_load_is_alive_without_a_probe() -> None:
    async with FakeSglang() as fake:
        engine = Sglang(fake.url)
        assert await engine.is_ready()
        assert fake.probes == 0
        await engine.aclose()


@pytest.mark.parametrize("generates", [True, False])
async def test_a_stale_load_is_probed_once_and_the_answer_kept(generates: bool) -> None:
    async with FakeSglang() as fake:
        fake.load_age_s, fake.generates = 30.0, generates
        engine = Sglang(fake.url)
        assert [await engine.is_ready() for _ in range(5)] == [generates] * 5
        assert fake.probes == 1
        fake.load_age_s = 0.0
        assert await engine.is_ready()
        fake.load_age_s = 30.0
        assert await engine.is_ready() is generates
        assert fake.probes == 2
        await engine.aclose()


@pytest.mark.parametrize(
    ("server", "priority"),
    [
        ({}, None),
        ({"enable_priority_scheduling": False, "schedule_low_priority_values_first": True}, None),
        ({"enable_priority_scheduling": True}, 1),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, -1),
    ],
)
async def test_priorities_follow_what_the_engine_was_started_with(
    server: dict[str, bool], priority: int | None
) -> None:
    async with FakeSglang(**server) as fake:
        engine = Sglang(fake.url)
        assert "priority" not in engine.capabilities.request_additions(Endpoint.CHAT, FACTS)
        await engine.describe()
        assert engine.capabilities.request_additions(Endpoint.CHAT, FACTS).get("priority") == priority
        assert engine.capabilities.priorities is (priority is not None)
        await engine.aclose()


async def test_a_session_is_named_only_where_it_is_kept() -> None:
    for kept in (False, True):
        async with FakeSglang(enable_session_radix_cache=kept) as fake:
            engine = Sglang(fake.url)
            await engine.describe()
            added = engine.capabilities.request_additions(Endpoint.CHAT, FACTS)
            assert added.get("session_id") == ("s-1" if kept else None)
            await engine.aclose()


async def test_an_odd_description_is_an_upstream_error() -> None:
    async with FakeSglang(enable_priority_scheduling="maybe") as fake:
        engine = Sglang(fake.url)
        with pytest.raises(UpstreamError, match="unknown way"):
            await engine.describe()
        await engine.aclose()

"""W47 retry-pileup: a client that hangs up and asks again keeps its place, and never has two copies on the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from governor.types import TurnId
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import Governed, governed
from tests.unit.test_schedule_kv import Table

HELD_S = 1.2
PATIENCE_S = 0.5
ATTEMPTS = 5
CLOSING_S = 0.1
"""Until an engine has noticed that a connection was closed."""
BODY = {"model": "m", "messages": [{"role": "user", "content": "the very same question"}]}


def test_W47_the_same_prompt_asked_again_keeps_its_place() -> None:
    table = Table(slots=1, pauses=False)
    table.arrive("first", 1_000)
    table.arrive("asked", 1_000, agent="impatient", prompt_name=b"question")
    table.at(5.0)
    table.arrive("other", 1_000, agent="patient")
    table.at(8.0)
    table.end("asked")  # its client hangs up
    table.now = 8.5
    table.arrive("again", 1_000, agent="impatient", prompt_name=b"question")
    table.arrive("new", 1_000, agent="third", prompt_name=b"another question")
    table.end("first")
    assert table.effects.granted == ["first", "again"]


def test_W47_its_waiting_budget_goes_on() -> None:
    table = Table(slots=1, pauses=False)
    table.arrive("first", 1_000)
    for attempt in range(10):
        table.arrive(f"a{attempt}", 1_000, agent="impatient", prompt_name=b"question")
        table.at(table.now + 5.0)
        if attempt < 9:
            table.end(f"a{attempt}")
    assert table.scheduler.standing(table.now, TurnId("a9")) is not None
    table.arrive("hot", 1_000, agent="hot")
    table.end("first")
    assert table.effects.granted[-1] == "a9"


async def test_W47_never_two_copies_and_an_answer_within_its_attempts(tmp_path: Path) -> None:
    engine = ScriptedEngine("say:fine", knobs=Knobs(model="m", head_delay_s=HELD_S))
    policies = {"impatient": "[stream]\nkeepalive_after_s = 30\n"}
    async with (
        engine,
        governed(engine.url, tmp_path, policies=policies, agents=("busy", "impatient")) as gov,
    ):
        gov.governor.admission.set_engine(gov.governor.watch.mode, 1)
        other = asyncio.create_task(gov.chat("busy"))
        await asyncio.sleep(0.1)
        attempts = await _until_answered(gov)
        assert attempts <= ATTEMPTS
        assert (await other).status_code == 200
        await gov.assert_idle()
    ends = [hit.ended_at or hit.peer_closed_at or 0.0 for hit in engine.hits]
    begins = [hit.received_at for hit in engine.hits[1:]]
    assert len(begins) >= 1
    assert all(begin >= end - CLOSING_S for begin, end in zip(begins, ends, strict=False))


async def _until_answered(gov: Governed) -> int:
    """Ask with little patience for as long as the turn waits; how often it took."""
    for attempt in range(1, ATTEMPTS + 1):
        patience_s = PATIENCE_S if attempt <= 2 else PATIENCE_S + HELD_S
        async with gov.client("impatient") as client:
            try:
                answer = await client.post("/v1/chat/completions", json=BODY, timeout=patience_s)
            except httpx.ReadTimeout:
                continue
            assert answer.status_code == 200
            return attempt
    raise AssertionError("never answered")


async def test_W47_a_stream_that_is_kept_alive_is_not_asked_for_again(tmp_path: Path) -> None:
    engine = ScriptedEngine("say:fine", knobs=Knobs(model="m", head_delay_s=HELD_S))
    policies = {"alice": "[stream]\nkeepalive_after_s = 0.2\nkeepalive_every_s = 0.2\n"}
    async with engine, governed(engine.url, tmp_path, policies=policies) as gov:
        async with gov.client("alice") as client:
            answer = await client.post("/v1/chat/completions", json=BODY | {"stream": True}, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert b"[DONE]" in answer.content
        assert len(await gov.rows()) == 1

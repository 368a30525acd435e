"""A summary that is written while nobody waits, for the prompt that will need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor.gateway.prepared import Preparer
from governor.gateway.turn import Turn
from governor.policy.model import Policy
from governor.types import TokenCount, TurnKind, Usage
from governor.wire.answer import Answer
from serve.scripted import Knobs, ScriptedEngine
from serve.scripted.behaviour import Behaviour
from tests.summarising import Summarising, policy_of, summarising

TEXT = "The user wants the cache measured. src/cache.py holds the checkpoints; error E42 was fixed in b4d1a61. " * 2
WINDOW = 16_384
LONG: list[dict[str, Any]] = [
    {"role": "user", "content": "start"},
    *(
        {"role": role, "content": f"{role} {number} " + "words and more words " * 150}
        for number in range(12)
        for role in ("assistant", "user")
    ),
]


def answered(at: Summarising, **fields: Any) -> Turn:
    """A turn that has ended with an answer."""
    turn = at.parent()
    usage = Usage(prompt_tokens=13_500, completion_tokens=100)
    answer: dict[str, Any] = {"usage": usage, "finish_reason": "stop", "done": True, "text_bytes": 400} | fields
    turn.answer = Answer(**answer)
    return turn


@asynccontextmanager
async def preparing(at: Summarising) -> AsyncIterator[Preparer]:
    preparer = Preparer(at.summariser, at.gateway.governor.admission, at.weigh, settle_s=0.01)
    running = asyncio.create_task(preparer.run())
    try:
        yield preparer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until_at_rest(preparer: Preparer, engine: ScriptedEngine) -> None:
    await asyncio.sleep(0.2)
    await engine.wait_idle()


async def test_it_is_there_when_the_next_prompt_comes(tmp_path: Path) -> None:
    async with (
        ScriptedEngine(summaries=[Behaviour(say=TEXT)], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
        preparing(at) as preparer,
    ):
        shaped = at.shaped(LONG)
        turn = answered(at)
        preparer.on_answered(turn, shaped, TokenCount(tokens=13_500), policy_of(), WINDOW)
        await engine.wait_for(lambda: len(preparer.book) == 1)
        following = at.shaped([*LONG, {"role": "assistant", "content": "so"}, {"role": "user", "content": "and now"}])
        found = preparer.find(turn.agent, following)
        assert found is not None
        assert found.summary.text == TEXT.strip()
        assert found.summary.covered == len(LONG) - 1
        edited = [{"role": "user", "content": "another start"}, *LONG[1:]]
        assert preparer.find(turn.agent, at.shaped(edited)) is None
        (row,) = [end for end in await at.gateway.ends() if end.kind is TurnKind.SUMMARY]
        assert row.flags == (f"parent:{turn.turn_id}",)
        # The same conversation, a little later: what was prepared still does.
        preparer.on_answered(answered(at), following, TokenCount(tokens=13_700), policy_of(), WINDOW)
        await until_at_rest(preparer, engine)
        assert len(engine.hits) == 1
        preparer.on_used(turn.agent, following)
        assert preparer.find(turn.agent, following) is None


NOT_NOW: dict[str, tuple[dict[str, Any], Policy]] = {
    "a tool is called": ({"finish_reason": "tool_calls", "tool_bytes": 10}, policy_of()),
    "a call, and an engine that says stop": ({"tool_bytes": 10}, policy_of()),
    "cut off at its cap": ({"finish_reason": "length"}, policy_of()),
    "short": ({"usage": Usage(prompt_tokens=8_000, completion_tokens=100)}, policy_of()),
    "not asked for": ({}, Policy()),
    "of no use": ({}, policy_of(target=15_000, gain=10, trigger=15_100)),
}


@pytest.mark.parametrize("why", NOT_NOW)
async def test_nothing_is_written_where_it_would_be_of_no_use(why: str, tmp_path: Path) -> None:
    fields, policy = NOT_NOW[why]
    async with (
        ScriptedEngine(knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
        preparing(at) as preparer,
    ):
        preparer.on_answered(answered(at, **fields), at.shaped(LONG), TokenCount(tokens=13_500), policy, WINDOW)
        await until_at_rest(preparer, engine)
        assert not engine.hits


async def test_it_makes_way_for_the_next_turn(tmp_path: Path) -> None:
    async with (
        ScriptedEngine("say:ok", summaries=["hang"], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
        preparing(at) as preparer,
    ):
        preparer.on_answered(answered(at), at.shaped(LONG), TokenCount(tokens=13_500), policy_of(), WINDOW)
        await engine.wait_for(lambda: len(engine.hits) == 1)
        async with asyncio.timeout(5):
            (await at.gateway.chat()).raise_for_status()
            await engine.wait_idle()
        assert len(preparer.book) == 0


async def test_failures_end(tmp_path: Path) -> None:
    """Not again before it has grown, nor more often than the policy says, until it was short for once."""
    policy = policy_of(attempts=2, cooldown_tokens=300)
    async with (
        ScriptedEngine(summaries=["500", "empty", Behaviour(say=TEXT)], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
        preparing(at) as preparer,
    ):
        for prompt_tokens, asked in ((13_500, 1), (13_600, 1), (13_900, 2), (15_000, 2), (5_000, 2), (13_500, 3)):
            turn = answered(at, usage=Usage(prompt_tokens=prompt_tokens))
            preparer.on_answered(turn, at.shaped(LONG), TokenCount(tokens=prompt_tokens), policy, WINDOW)
            await until_at_rest(preparer, engine)
            assert len(engine.hits) == asked
        assert len(preparer.book) == 1

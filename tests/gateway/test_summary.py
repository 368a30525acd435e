"""The governor's own turn: a summary of a history, or by name what kept it from being one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.compress.summary import Rejection, cap_tokens, instruction
from governor.events import TurnDecided
from governor.policy.model import HistoryMode
from governor.store.model import TurnClosed
from governor.types import TurnKind, TurnState
from serve.scripted import Knobs, ScriptedEngine
from serve.scripted.behaviour import Behaviour, ScriptedCall
from serve.twin_server.script import Match, Rule, Script
from serve.twin_server.wishes import Wish
from tests.summarising import AGENT, Summarising, policy_of, summarising
from tests.twin_server import WEATHER, small_machine, twin_server

TEXT = "The user wants the cache measured. src/cache.py holds the checkpoints; error E42 was fixed in b4d1a61. " * 2
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "start"},
    *(
        {"role": role, "content": f"{role} {number} " + "words and more words " * 40}
        for number in range(8)
        for role in ("assistant", "user")
    ),
]


async def summary_row(at: Summarising) -> TurnClosed:
    """The only turn that is a summary."""
    (row,) = [end for end in await at.gateway.ends() if end.kind is TurnKind.SUMMARY]
    return row


async def test_a_summary_is_a_turn_of_its_own(tmp_path: Path) -> None:
    async with (
        ScriptedEngine(summaries=[Behaviour(say=TEXT)], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
    ):
        asked = await at.asked(HISTORY, stream=True, n=2, stop=["\n"], max_completion_tokens=5)
        written = await at.summariser.write(asked)
        assert written.rejected is None
        assert written.summary is not None
        assert written.summary.text == TEXT.strip()
        assert written.summary.covered == len(HISTORY) - 1, "not what the user has just said"
        (hit,) = engine.hits
        sent = msgspec.json.decode(hit.body)
        assert sent["messages"][:-1] == HISTORY[:-1]
        assert sent["messages"][-1]["content"] == instruction(400)
        assert (sent["stream"], sent["max_tokens"]) == (False, cap_tokens(policy_of().compression))
        assert not {"n", "stop", "max_completion_tokens"} & set(sent)
        row = await summary_row(at)
        assert row.turn_id == written.turn_id
        assert row.state is TurnState.OK
        assert row.flags == (f"parent:{asked.parent.turn_id}",)
        assert row.session == asked.located.session_id
        assert row.usage.prompt_tokens is not None
        assert row.cap_applied == sent["max_tokens"]
        decided = [each.event for each in at.gateway.governor.events.since(0) if isinstance(each.event, TurnDecided)]
        assert {each.agent for each in decided if each.turn_id == written.turn_id} == {AGENT}


FAILURES: dict[str, tuple[Any, Rejection, TurnState]] = {
    "as long as the input": (Behaviour(say="row 1 data " * 60_000), Rejection.CUT, TurnState.TRUNCATED),
    "and no cap obeyed": (
        [{"status": 200, "headers": {"content-type": "application/json"}}, {"json": {"choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "row 1 data " * 20_000}}
        ]}}, {"close": "fin"}], Rejection.TOO_LONG, TurnState.OK,
    ),
    "boilerplate": ("say:Nothing to add.", Rejection.TOO_SHORT, TurnState.OK),
    "empty": ("say:", Rejection.EMPTY, TurnState.OK),
    "only thoughts": ("empty", Rejection.THINKING_ONLY, TurnState.OK),
    "a call": (Behaviour(calls=(ScriptedCall("ls"),)), Rejection.TOOL_CALL, TurnState.OK),
    "refused": ("500", Rejection.ERROR, TurnState.UPSTREAM_ERROR),
    "over the window": ("overflow:sglang", Rejection.ERROR, TurnState.UPSTREAM_ERROR),
    "cut off": ("cut", Rejection.ERROR, TurnState.UPSTREAM_ERROR),
    "no answer": ("hang", Rejection.ERROR, TurnState.UPSTREAM_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("how", FAILURES)
async def test_a_failure_has_a_name_and_leaves_nothing_behind(how: str, tmp_path: Path) -> None:
    answer, reason, state = FAILURES[how]
    async with (
        ScriptedEngine(summaries=[answer], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path, deadline_s=0.5) as at,
    ):
        written = await at.summariser.write(await at.asked(HISTORY))
        assert written.summary is None
        assert written.rejected is not None
        assert written.rejected.reason is reason, str(written.rejected)
        rows = [end for end in await at.gateway.ends() if end.turn_id == written.turn_id]
        assert [row.state for row in rows] == [state]


async def test_nothing_is_asked_before_there_is_an_answer(tmp_path: Path) -> None:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine, summarising(engine.url, tmp_path) as at:
        written = await at.summariser.write(await at.asked(HISTORY[:2]))
        assert written.rejected is not None
        assert written.rejected.reason is Rejection.NOTHING
        assert written.turn_id is None
        small = await at.summariser.write(await at.asked(HISTORY, window_tokens=500))
        assert small.rejected is not None
        assert small.rejected.reason is Rejection.TOO_LARGE
        assert (await summary_row(at)).state is TurnState.REFUSED
        assert not engine.hits


async def test_a_client_that_leaves_takes_it_along(tmp_path: Path) -> None:
    async with (
        ScriptedEngine(summaries=["hang"], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
    ):
        asked = await at.asked(HISTORY)
        work = asyncio.create_task(at.summariser.write(asked))
        await engine.wait_for(lambda: len(engine.hits) == 1)
        asked.parent.client_gone = True
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await engine.wait_idle()
        assert (await summary_row(at)).state is TurnState.CLIENT_ABORTED


async def test_in_idle_time_it_makes_way_and_never_waits(tmp_path: Path) -> None:
    async with (
        ScriptedEngine("say:ok", summaries=["hang"], knobs=Knobs(model="m")) as engine,
        summarising(engine.url, tmp_path) as at,
    ):
        work = asyncio.create_task(at.summariser.write(await at.asked(HISTORY, idle=True)))
        await engine.wait_for(lambda: len(engine.hits) == 1)
        (await at.gateway.chat()).raise_for_status()
        written = await work
        assert written.rejected is not None
        assert written.rejected.reason is Rejection.BROKEN_OFF
        assert "alice wants the engine" in written.rejected.detail
        await engine.wait_idle()
        decided = [each.event for each in at.gateway.governor.events.since(0) if isinstance(each.event, TurnDecided)]
        assert next(each.why for each in decided if each.turn_id == written.turn_id).startswith("in idle time")


SCRIPT = Script(
    rules=(
        Rule(match=Match(last_user="Write that summary now"), answer=Wish(text=TEXT, calls=())),
        Rule(answer=Wish(text="So it is, and so it was.", reasoning="What else?", calls=())),
    )
)


@pytest.mark.parametrize("history", [HistoryMode.AS_SENT, HistoryMode.EXACT])
async def test_its_prompt_comes_from_the_cache(history: HistoryMode, tmp_path: Path) -> None:
    """After a turn, at the user's next word: what was in its prompt is there, tools and all, whether the client's own
    words are sent or the tokens that were written."""
    tiers = {"device_tokens": 32768, "host_tokens": 65536}
    policies = {"alice": f'[request]\nhistory = "{history}"\n'}
    async with (
        twin_server(small_machine(tiers=tiers, context_tokens=16384), script=SCRIPT) as twin,
        summarising(twin.url, tmp_path, engine_kind="sglang", policies=policies) as at,
    ):
        body: dict[str, Any] = {"model": "tiny-hybrid", "tools": [WEATHER]}
        messages: list[dict[str, Any]] = [{"role": "user", "content": "tell me all of it " * 1600}]
        for number in range(3):
            answer = await at.gateway.chat(**body, messages=messages, max_tokens=400)
            said = answer.raise_for_status().json()["choices"][0]["message"]
            messages.append({"role": "assistant", "content": said["content"]})
            messages.append({"role": "user", "content": f"and then {number}?"})
        asked = await at.asked(messages, policy=policy_of(history), window_tokens=16384, **body)
        written = await at.summariser.write(asked)
        assert written.summary is not None, str(written.rejected)
        row = await summary_row(at)
        usage = row.usage
        assert usage.prompt_tokens is not None
        assert usage.cached_tokens is not None
        assert usage.cached_tokens >= 0.95 * usage.prompt_tokens
        assert usage.cached_device_tokens == usage.cached_tokens
        assert ("history restored" in str(row.edits)) is (history is HistoryMode.EXACT)
        await twin.until_idle()

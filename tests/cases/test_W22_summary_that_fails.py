"""W22 compaction-no-shrink, seen by a client: whatever comes of the summary, the prompt that reaches the engine is
smaller by the least gain or the very same, attempts end, and nobody gets a blank answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.types import TurnKind
from serve.scripted.ask import CallKind
from tests.harness import governed
from tests.scenario import CaseVariant, load_case

VARIANTS = [variant for variant in load_case("W22").variants if variant.v != "hang"]
"""An engine that does not answer is met in ``tests/gateway/test_summary.py``, where the deadline is short."""


def policy(variant: CaseVariant, stages: str) -> str:
    return f"""
[compression]
mode = "enforce"
trigger = 0.7
stages = [{stages}]
gain = {variant.policy["min_gain"]}
attempts = {variant.policy["max_attempts"]}
cooldown_tokens = 0
summary_tokens = 400
exhausted = "overflow"
"""


def at_a_question(variant: CaseVariant) -> list[dict[str, Any]]:
    """The case ends within a chain of calls, where no summary is written; so it is answered, and the user goes on. Half
    of it fits the window, so that it can be sent as it is, too."""
    assert variant.request is not None
    answered = {"role": "assistant", "content": "It has rows."}
    return [*variant.request.body["messages"][:8], answered, {"role": "user", "content": "and how many?"}]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.v)
async def test_W22_where_there_is_another_stage_it_does(variant: CaseVariant, tmp_path: Path) -> None:
    messages = at_a_question(variant)
    text = policy(variant, '"summary", "drop"')
    async with (
        variant.engine() as engine,
        governed(engine.url, tmp_path, policies={"alice": text}) as gateway,
    ):
        answer = await gateway.chat("alice", messages=messages, max_tokens=50)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"]
        summary, main = engine.hits
        assert summary.kind == CallKind.SUMMARY.value
        sent = msgspec.json.decode(main.body)["messages"]
        assert len(msgspec.json.encode(sent)) < (1 - variant.policy["min_gain"]) * len(msgspec.json.encode(messages))
        assert (sent[:2], sent[-1]) == (messages[:2], messages[-1])
        assert "[record, not a task: " in str(sent)
        ends = await gateway.ends()
        (row,) = [end for end in ends if end.kind is TurnKind.SUMMARY]
        (turn,) = [end for end in ends if end.kind is not TurnKind.SUMMARY]
        assert f"parent:{turn.turn_id}" in row.flags
        await gateway.assert_idle()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.v)
async def test_W22_where_there_is_none_attempts_end(variant: CaseVariant, tmp_path: Path) -> None:
    """The original is sent as it is while it fits; when the attempts are used up the client hears of it, once."""
    messages = at_a_question(variant)
    attempts = variant.policy["max_attempts"]
    async with (
        variant.engine() as engine,
        governed(engine.url, tmp_path, policies={"alice": policy(variant, '"summary"')}) as gateway,
    ):
        statuses = []
        for number in range(attempts + 2):
            answer = await gateway.chat("alice", messages=messages, max_tokens=50)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                assert answer.json()["choices"][0]["message"]["content"]
            else:
                assert answer.json()["error"]["code"] == "context_length_exceeded"
            messages = [*messages[:-1], {"role": "user", "content": f"and how many? {number}"}]
        assert statuses == [200] * (attempts - 1) + [400, 200, 200]
        summaries = [hit for hit in engine.hits if hit.kind == CallKind.SUMMARY.value]
        assert attempts <= len(summaries) <= 2 * attempts, "as many again may be written ahead in idle time"
        for hit in engine.hits:
            if hit not in summaries:
                assert len(msgspec.json.decode(hit.body)["messages"]) == len(messages)
        await gateway.assert_idle()

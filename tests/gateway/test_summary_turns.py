"""A conversation that grows over its trigger on the twin: summarised in idle time or at a question, and cached again
from the turn after."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from governor.store.model import TurnClosed
from governor.types import TurnKind
from serve.twin_server.script import Match, Rule, Script
from serve.twin_server.wishes import Wish
from tests.harness import Governed, governed
from tests.twin_server import WEATHER, small_machine, twin_server

TEXT = "The user wants the cache measured. src/cache.py holds the checkpoints; error E42 was fixed in b4d1a61. " * 2
SCRIPT = Script(
    rules=(
        Rule(match=Match(last_user="Write that summary now"), answer=Wish(text=TEXT, calls=())),
        Rule(answer=Wish(text="So it is, and so it was.", reasoning="What else?", calls=())),
    )
)
POLICY = """
[compression]
mode = "enforce"
trigger = 8000
target = 5000
gain = 1000
recent = 1000
stages = ["summary", "drop"]
summary_tokens = 400
cooldown_tokens = 500
"""

NEW_TOKENS = 450
"""Of the summary's prompt: the instruction, the last answer as the client has it, and what lies between checkpoints."""


class Talk:
    def __init__(self, gateway: Governed) -> None:
        self._gateway = gateway
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": "Follow the rules. " * 100}]

    async def says(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        answer = await self._gateway.chat(
            model="tiny-hybrid", messages=self._messages, tools=[WEATHER], max_tokens=400, stream=False
        )
        said = answer.raise_for_status().json()["choices"][0]["message"]
        self._messages.append({"role": "assistant", "content": said["content"]})


def cached_share(turn: TurnClosed) -> float:
    assert turn.usage.prompt_tokens is not None
    assert turn.usage.cached_tokens is not None
    return turn.usage.cached_tokens / turn.usage.prompt_tokens


@pytest.mark.parametrize("rests", [True, False], ids=["in idle time", "at a question"])
async def test_it_is_summarised_once_and_goes_on_warm(rests: bool, tmp_path: Path) -> None:
    async with (
        twin_server(
            small_machine(tiers={"device_tokens": 32768, "host_tokens": 65536}, context_tokens=16384), script=SCRIPT
        ) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": POLICY}) as gateway,
    ):
        talk, preparer = Talk(gateway), gateway.governor.preparer
        for number in range(5):
            await talk.says(f"question {number} " + "words and more of them " * 170)
        if rests:
            async with asyncio.timeout(10):
                while not len(preparer.book):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.01)
        await talk.says("and what of it? " + "words and more of them " * 150)
        for number in range(3):
            await talk.says(f"go on {number}")
        ends = await gateway.ends()
        (summary,) = [end for end in ends if end.kind is TurnKind.SUMMARY]
        turns = [end for end in ends if end.kind is not TurnKind.SUMMARY]
        (cut,) = [turn for turn in turns if "compressed: " in str(turn.edits)]
        assert "(summary " in str(cut.edits)
        parent = turns[turns.index(cut) - 1] if rests else cut
        assert f"parent:{parent.turn_id}" in summary.flags
        assert (summary.usage.new_tokens or 0) < NEW_TOKENS
        assert cut.usage.prompt_tokens is not None
        assert cut.usage.prompt_tokens <= 5000
        after = turns[turns.index(cut) + 1 :]
        assert len(after) == 3
        for turn in after:
            assert cached_share(turn) >= 0.95
        await gateway.assert_idle()
        await twin.until_idle()


async def test_a_retry_goes_on_with_the_summary_that_is_being_written(tmp_path: Path) -> None:
    """A client that asks again while it waits costs no second summary, and its prompt is the same."""
    async with (
        twin_server(
            small_machine(tiers={"device_tokens": 32768, "host_tokens": 65536}, context_tokens=16384), script=SCRIPT
        ) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": POLICY}) as gateway,
    ):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Follow the rules. " * 100}]
        for number in range(6):
            messages += [
                {"role": "user", "content": f"question {number} " + "words and more of them " * 170},
                {"role": "assistant", "content": f"answer {number} " + "and more of them " * 170},
            ]
        messages.append({"role": "user", "content": "and what of it?"})
        body: dict[str, Any] = {"model": "tiny-hybrid", "messages": messages, "max_tokens": 100}
        for answer in await asyncio.gather(*(gateway.chat(**body) for _ in range(3))):
            answer.raise_for_status()
        ends = await gateway.ends()
        turns = [end for end in ends if end.kind is not TurnKind.SUMMARY]
        assert len(ends) == len(turns) + 1
        assert len({turn.usage.prompt_tokens for turn in turns}) == 1
        edits = sorted(turn.edits[0].partition(": ")[0] for turn in turns)
        assert edits == ["compressed", "head", "head"]
        await gateway.assert_idle()

"""Recalls on an engine that pauses answers and tells tokens: one answer still, its room booked, its history found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor.compress.recall import NAME
from governor.store.model import TurnClosed
from governor.types import PromptShape, TurnState
from serve.twin_server.script import Match, Rule, Script
from serve.twin_server.wishes import Wish, WishedCall
from tests.harness import Governed, governed
from tests.recalling import POLICY, TEXT, handle, keep, streamed
from tests.twin_server import WEATHER, Running, small_machine, twin_server

FIRST, SECOND, THIRD = "Which port has the second cache?", "Are you sure?", "And its key?"
THOUGHT = "The line in brackets stands for what I have read before, so I have to read it again. " * 4
SAID = "Let me look at what I read before."
FOUND = "The file says that it is 7143, as I had read before. " * 6
MODEL = "tiny-hybrid"
EXACT = '[request]\nhistory = "exact"\n'
INTERVAL = 256
"""Tokens of decode between two states of the model."""


def rule(question: str, turn: int | None = None, **wish: Any) -> Rule:
    return Rule(
        name=f"{question} {turn}",
        match=Match(last_user=question, turn=turn),
        answer=Wish(**({"calls": ()} | wish)),
    )


def recalling(*more: WishedCall, text: str = TEXT) -> dict[str, Any]:
    call = WishedCall(name=NAME, arguments={"handle": handle(text)})
    return {"reasoning": THOUGHT, "text": SAID, "calls": (call, *more)}


SCRIPT = Script(
    rules=(
        rule(FIRST, 1, **recalling()),
        rule(FIRST, reasoning=THOUGHT[:90], text=FOUND),
        rule(SECOND, reasoning=THOUGHT[:90], text="Yes, I am sure of it."),
        rule(THIRD, reasoning=THOUGHT[:90], text="It is b6-eleven."),
    )
)


@asynccontextmanager
async def rig(
    root: Path, script: Script = SCRIPT, policy: str = "", speed: float = 40.0, **machine: Any
) -> AsyncIterator[tuple[Governed, Running]]:
    policies = {"alice": POLICY + policy, "bob": policy or "# by default"}
    async with (
        twin_server(small_machine(**machine), script=script, speed=speed) as twin,
        governed(twin.url, root, engine_kind="sglang", agents=("alice", "bob"), policies=policies) as gateway,
    ):
        yield gateway, twin
        await gateway.assert_idle()
        await twin.until_idle()


class Conversation:
    """A client that sends back what it was shown, reasoning included."""

    def __init__(self, gateway: Governed) -> None:
        self._gateway = gateway
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are careful. " * 200}]

    async def ask(self, question: str) -> TurnClosed:
        self.messages.append({"role": "user", "content": question})
        return await self.go_on()

    async def go_on(self) -> TurnClosed:
        """A call of a tool is answered at once."""
        seen = (await streamed(self._gateway, model=MODEL, messages=self.messages, max_tokens=2000)).seen
        assert (seen.roles, seen.dones, len(seen.ids)) == (1, 1, 1)
        assert seen.finishes == ["tool_calls" if seen.calls else "stop"]
        assert len(seen.usage) == 1
        said: dict[str, Any] = {"content": seen.content, "reasoning_content": seen.reasoning}
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in seen.calls.values()
        ]
        self.messages.append({"role": "assistant", **said} | ({"tool_calls": calls} if calls else {}))
        self.messages += [{"role": "tool", "tool_call_id": call["id"], "content": "21 °C, dry."} for call in calls]
        return (await self._gateway.ends())[-1]


async def test_one_answer_in_pieces(tmp_path: Path) -> None:
    async with rig(tmp_path) as (gateway, _):
        keep(gateway)
        talk = Conversation(gateway)
        end = await talk.ask(FIRST)
        assert talk.messages[-1]["role"] == "assistant"
        answer = talk.messages[-1]
        assert answer["content"].split() == f"{SAID} {FOUND}".split()
        assert answer["reasoning_content"].split() == f"{THOUGHT} {THOUGHT[:90]}".split()
        assert (end.state, end.pieces) == (TurnState.OK, 2)
        known = end.usage
        assert known.reasoning_tokens is not None
        assert known.completion_tokens is not None
        assert known.completion_tokens > known.reasoning_tokens > 100
        assert end.prompt_tokens_counted == known.prompt_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_paused_wherever_it_is(stream: bool, tmp_path: Path) -> None:
    """Again and again, by the owner; the client has the answer that it has otherwise."""
    async with rig(tmp_path, speed=8.0) as (gateway, _):
        keep(gateway)

        async def answer() -> tuple[str, str]:
            messages = [{"role": "user", "content": FIRST}]
            if stream:
                seen = (await streamed(gateway, model=MODEL, messages=messages)).seen
                assert (seen.roles, seen.dones, seen.finishes, seen.calls) == (1, 1, ["stop"], {})
                return seen.content, seen.reasoning
            body: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": [WEATHER], "max_tokens": 500}
            message = (await gateway.chat(**body)).raise_for_status().json()["choices"][0]["message"]
            return message["content"], message["reasoning_content"]

        async def pausing() -> None:
            while True:
                for turn in gateway.governor.book.views():
                    await gateway.governor.admission.slice(turn.turn_id, "the owner")  # type: ignore[arg-type]
                await asyncio.sleep(0.05)

        alone = await answer()
        asking = asyncio.create_task(pausing())
        try:
            assert await answer() == alone
        finally:
            asking.cancel()
        end = (await gateway.ends())[-1]
        assert (end.pieces or 0) > 3
        assert sum(flag.startswith("recalled: ") for flag in end.flags) == 1


LONG = "".join(f"Line {number} of it says {number * 37 % 101}, as I had read. " for number in range(60))
CALLING = {"text": LONG, "calls": (WishedCall(name="get_weather", arguments={"city": "Oslo", "days": 2}),)}
CHAIN = Script(rules=(rule(FIRST, 1, **recalling()), rule(FIRST, 2, **CALLING, reasoning=THOUGHT), *SCRIPT.rules[1:]))
"""The model recalls and then calls a tool of the client's."""
ALONE = Script(
    rules=(
        rule(FIRST, 1, **CALLING | {"text": f"{SAID}\n\n{LONG}"}, reasoning=f"{THOUGHT}\n\n{THOUGHT}"),
        *CHAIN.rules[1:],
    )
)
"""The same without a recall."""


async def test_what_it_costs_the_next_turn(tmp_path: Path) -> None:
    """The client's history lacks the call: what was written in that turn is computed again, once, where it would not
    be otherwise."""
    again = {}
    for name, script in (("alone", ALONE), ("recalled", CHAIN)):
        async with rig(tmp_path / name, script, EXACT) as (gateway, _):
            keep(gateway)
            talk = Conversation(gateway)
            turns = [await talk.ask(FIRST), await talk.go_on(), await talk.go_on()]
            assert [turn.shape for turn in turns[1:]] == [PromptShape.CONTINUATION] * 2
            again[name] = [_computed(turn) for turn in turns]
            written = turns[0].usage.completion_tokens or 0
    assert again["alone"][1] < again["recalled"][1] < again["alone"][1] + written
    assert again["recalled"][2] <= again["alone"][2] + INTERVAL


def _computed(turn: TurnClosed) -> int:
    return (turn.usage.prompt_tokens or 0) - (turn.usage.cached_tokens or 0)


async def test_an_exact_history_begins_anew_behind_a_recall(tmp_path: Path) -> None:
    async with rig(tmp_path, policy=EXACT) as (gateway, _):
        keep(gateway)
        talk = Conversation(gateway)
        ends = [await talk.ask(question) for question in (FIRST, SECOND, THIRD)]
        assert [end.state for end in ends] == [TurnState.OK] * 3
        assert "history_as_sent: the answer before was not kept" in ends[1].flags
        assert any(edit.startswith("history restored: ") for edit in ends[2].edits)


async def test_a_recall_behind_an_exact_history(tmp_path: Path) -> None:
    """Its first prompt is tokens, the one behind the recall is messages."""
    rules = (rule(SECOND, 2, **recalling()), rule(SECOND, reasoning=THOUGHT[:90], text="Yes."), rule(FIRST, text="Hm."))
    async with rig(tmp_path, Script(rules=rules), policy=EXACT) as (gateway, _):
        keep(gateway)
        talk = Conversation(gateway)
        await talk.ask(FIRST)
        end = await talk.ask(SECOND)
        assert any(edit.startswith("history restored: ") for edit in end.edits)
        assert talk.messages[-1]["content"].split() == f"{SAID} Yes.".split()
        assert any(flag.startswith("recalled: ") for flag in end.flags)


async def test_it_waits_for_room_that_it_has_not(tmp_path: Path) -> None:
    """L1 is full of bob's answer when alice's model recalls a long text: the place is given back, and had again."""
    text = "A line of the log that says what was built. " * 400
    rules = (
        rule(FIRST, 1, **recalling(text=text)),
        rule(FIRST, reasoning="", text="It was built."),
        rule("Write", reasoning="", text=FOUND * 24),
    )
    policy = "[slices]\nenabled = false\n[output]\ntool_step = 4500\nloop_chars = 0\n"
    async with rig(tmp_path, Script(rules=rules), policy=policy) as (gateway, _):
        keep(gateway, text)
        bobs = {"model": MODEL, "messages": [{"role": "user", "content": "Write."}], "tools": [WEATHER]}
        other = asyncio.create_task(gateway.chat("bob", **bobs, max_tokens=4500))
        async with asyncio.timeout(10):
            while not gateway.governor.admission.running:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        seen = (await streamed(gateway, model=MODEL, messages=[{"role": "user", "content": FIRST}])).seen
        assert seen.content.split()[-3:] == ["It", "was", "built."]
        (await other).raise_for_status()
        (end,) = [end for end in await gateway.ends() if "recall tool" in end.edits]
        (flag,) = [flag for flag in end.flags if flag.startswith("recalled: ")]
        assert 3000 < int(flag.split()[2].replace(",", "")) < 4500
        assert (end.paused_ms or 0) > 0


async def test_each_generation_has_its_bounds(tmp_path: Path) -> None:
    """Thinking behind a recall is closed at its budget as well, and a loop ends the answer."""
    rules = (
        rule(FIRST, 1, **recalling()),
        rule(FIRST, reasoning=THOUGHT * 20, text="It is 7143."),
        rule(SECOND, 1, **recalling()),
        rule(SECOND, reasoning="", text="And so on and on. " * 200),
    )
    policy = "[output]\nthinking = 120\nloop_chars = 200\n"
    async with rig(tmp_path, Script(rules=rules), policy=policy, speed=4.0) as (gateway, _):
        keep(gateway)
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 4000}
        seen = (await streamed(gateway, **body, messages=[{"role": "user", "content": FIRST}])).seen
        assert seen.content.endswith("It is 7143.")
        assert seen.finishes == ["stop"]
        end = (await gateway.ends())[-1]
        assert any(flag.startswith("thinking_closed: ") for flag in end.flags)
        seen = (await streamed(gateway, **body, messages=[{"role": "user", "content": SECOND}])).seen
        assert seen.finishes == ["length"]
        assert len(seen.content) < 2500
        assert (seen.dones, seen.roles) == (1, 1)

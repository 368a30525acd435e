"""The head that stands for a conversation's beginning is replayed byte for byte, and only for that beginning. The
engine tells no exact counts here, so that estimates are lived with, too."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from governor.store.model import TurnClosed
from governor.types import AgentName
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import Governed, governed
from tests.tool_loop import ToolLoop

WINDOW = 32_768
ENFORCE = """
[compression]
mode = "enforce"
stages = ["superseded", "trim", "stub", "drop"]
cooldown_tokens = 512
"""
LONG = 45
"""Calls, of some 600 tokens each: more than the trigger, and more than the target by far."""
_HANDLE = re.compile(rb"gov-[0-9a-f]{16}")


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(knobs=Knobs(model="m", window_tokens=WINDOW)) as running:
        yield running


def gateway_at(engine: ScriptedEngine, root: Path, policy: str = ENFORCE) -> AbstractAsyncContextManager[Governed]:
    return governed(engine.url, root, agents=("alice", "bob"), policies={"alice": policy})


@pytest.fixture
async def gateway(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    async with gateway_at(engine, tmp_path) as running:
        yield running
        await running.assert_idle()


def sent(engine: ScriptedEngine) -> list[bytes]:
    """The messages of the last request that the engine had."""
    body = msgspec.json.decode(engine.hits[-1].body, type=dict[str, msgspec.Raw])
    return [bytes(raw) for raw in msgspec.json.decode(body["messages"], type=list[msgspec.Raw])]


async def last(gateway: Governed) -> TurnClosed:
    return (await gateway.ends())[-1]


async def compressed(gateway: Governed, *, seed: int = 7) -> ToolLoop:
    """A conversation that was made shorter in its only turn so far."""
    loop = ToolLoop(gateway, "alice", "m", seed=seed)
    for _ in range(LONG):
        loop.on_tool()
    await loop.step()
    assert (await last(gateway)).edits[0].startswith("compressed: ")
    return loop


async def test_the_head_is_replayed_byte_for_byte(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    first = sent(engine)
    for _ in range(3):
        await loop.step(lines=2)
        assert sent(engine)[: len(first)] == first
    assert sent(engine)[-1] == msgspec.json.encode(loop.messages[-3])


async def test_a_retry_is_the_same_prompt(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    del loop.messages[-2:]
    first = sent(engine)
    await loop.ask()
    assert sent(engine) == first


async def test_it_lasts_over_a_restart(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with gateway_at(engine, tmp_path) as gateway:
        loop = await compressed(gateway)
        first, keys = sent(engine), gateway.keys
    async with governed(engine.url, tmp_path, agents=()) as gateway:
        gateway.keys |= keys
        again = ToolLoop(gateway, "alice", "m")
        again.messages = loop.messages
        await again.step(lines=2)
        assert sent(engine)[: len(first)] == first
        assert (await last(gateway)).edits[0].startswith("head: ")


async def test_what_clients_rewrite_does_not_lose_it(engine: ScriptedEngine, gateway: Governed) -> None:
    """Other spaces, arguments written anew, ids without punctuation."""
    loop = await compressed(gateway)
    first = sent(engine)
    for each in loop.messages:
        for call in each.get("tool_calls", ()):
            call["id"] = call["id"].replace("_", "")
            call["function"]["arguments"] = call["function"]["arguments"].replace(":", " : ")
        if "tool_call_id" in each:
            each["tool_call_id"] = each["tool_call_id"].replace("_", "")
    await loop.step(lines=2)
    covered = sum(1 for raw in first if _HANDLE.search(raw))
    assert covered > 3
    assert sent(engine)[:covered] == first[:covered]
    assert any(flag.startswith("compressed_head_rewritten") for flag in (await last(gateway)).flags)


async def test_an_edit_within_it_is_a_conversation_of_its_own(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    first = sent(engine)
    other = ToolLoop(gateway, "alice", "m")
    other.messages = copy.deepcopy(loop.messages)
    other.messages[5]["content"] = "something else came out " * 200
    await other.step(lines=2)
    end = await last(gateway)
    assert end.edits[0].startswith("compressed: "), "it is too long, and has no head yet"
    branch = sent(engine)
    assert branch != first
    await loop.step(lines=2)
    assert sent(engine)[: len(first)] == first
    await other.step(lines=2)
    assert sent(engine)[: len(branch)] == branch


async def test_a_client_that_goes_back_behind_it_has_its_own_words(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    loop.messages = [*loop.messages[:6], {"role": "user", "content": "Forget that. Start anew."}]
    await loop.ask()
    assert sent(engine) == [msgspec.json.encode(each) for each in loop.messages]


async def test_a_clock_in_the_system_prompt_does_not_lose_it(engine: ScriptedEngine, gateway: Governed) -> None:
    """It costs the cache, but what was cut stays cut."""
    loop = await compressed(gateway)
    first = sent(engine)
    for minute in range(3):
        loop.messages[0]["content"] = f"It is 12:0{minute}. You are a careful engineer."
        await loop.step(lines=2)
        assert sent(engine)[0] == msgspec.json.encode(loop.messages[0])
        assert sent(engine)[1 : len(first)] == first[1:]
        assert (await last(gateway)).edits[0].startswith("head: ")


async def test_heads_are_of_one_agent(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    theirs = ToolLoop(gateway, "bob", "m")
    theirs.messages = loop.messages
    await theirs.ask()
    assert sent(engine) == [msgspec.json.encode(each) for each in loop.messages]


async def test_what_left_is_kept_under_the_handles_that_the_prompt_names(
    engine: ScriptedEngine, gateway: Governed
) -> None:
    loop = await compressed(gateway)
    handles = [found.decode() for raw in sent(engine) for found in _HANDLE.findall(raw)]
    assert len(handles) >= 5
    contents = [each["content"] for each in loop.messages if each["role"] == "tool"]
    for handle in handles:
        recalled = await gateway.archive.recall(handle, AgentName("alice"))
        assert recalled is not None
        body = msgspec.json.decode(recalled.left.body)
        assert body in contents or all(each in loop.messages for each in body)
        assert await gateway.archive.recall(handle, AgentName("bob")) is None


async def test_the_next_cut_begins_where_the_last_one_ended(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    for _ in range(60):
        await loop.step()
    ends = await gateway.ends()
    cuts = [index for index, end in enumerate(ends) if end.edits[0].startswith("compressed: ")]
    assert 2 <= len(cuts) <= 6
    for end in ends:
        assert (end.usage.prompt_tokens or 0) <= WINDOW * 0.8
    assert sent(engine)[:2] == [msgspec.json.encode(each) for each in loop.messages[:2]]


async def test_a_cut_within_the_head_loses_nothing_of_it(engine: ScriptedEngine, tmp_path: Path) -> None:
    """The first cut reaches far, for a call that was made again; the next ones free enough before that place."""
    policy = (
        '[compression]\nmode = "enforce"\nstages = ["superseded", "stub"]\ncooldown_tokens = 64\n'
        "trigger = 20000\ntarget = 17000\ngain = 500\nrecent = 1500\n"
    )
    async with gateway_at(engine, tmp_path, policy) as gateway:
        loop = ToolLoop(gateway, "alice", "m")
        for number in range(50):
            await loop.ask()
            assert len(sent(engine)) == len(loop.messages), "nothing leaves here but contents"
            loop.on_tool()
            if number in {24, 26}:
                loop.messages[-2]["tool_calls"][0]["function"]["arguments"] = '{"command":"make check"}'
        cuts = [end for end in await gateway.ends() if end.edits and end.edits[0].startswith("compressed: ")]
        assert len(cuts) == 3


async def test_a_prompt_that_was_made_shorter_is_measured_as_it_is_now(
    engine: ScriptedEngine, gateway: Governed
) -> None:
    """The client's own would not fit the window."""
    loop = ToolLoop(gateway, "alice", "m")
    for _ in range(2 * LONG):
        loop.on_tool()
    (await loop.ask(max_tokens=4096)).raise_for_status()
    end = await last(gateway)
    assert end.edits[0].startswith("compressed: ")
    assert end.cap_applied == 4096
    assert (end.prompt_tokens_counted or WINDOW) <= WINDOW // 2


async def test_an_engine_that_does_not_take_it_gets_the_clients_own_again(tmp_path: Path) -> None:
    """A strict template, or another model since. One refusal may be for something else."""
    refused = ["400:roles must alternate"]
    async with (
        ScriptedEngine(
            "say:ok", *refused, "say:ok", *refused, *refused, "say:ok", knobs=Knobs(model="m", window_tokens=WINDOW)
        ) as engine,
        gateway_at(engine, tmp_path) as gateway,
    ):
        loop = await compressed(gateway)
        answers, own = [], []
        for _ in range(5):
            answers.append((await loop.ask()).status_code)
            own.append(sent(engine) == [msgspec.json.encode(each) for each in loop.messages])
            loop.on_tool(lines=2)
        assert answers == [400, 200, 400, 400, 200]
        assert own == [False, False, False, False, True]
        assert any(flag.startswith("compressed_head_refused") for flag in (await last(gateway)).flags)


async def test_a_refused_turn_tells_what_was_done_to_it(engine: ScriptedEngine, gateway: Governed) -> None:
    loop = await compressed(gateway)
    loop.messages.append({"role": "user", "content": "one word after another " * 30_000})
    assert (await loop.ask()).status_code == 400
    assert (await last(gateway)).edits[0].startswith("head: ")

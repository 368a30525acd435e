"""What becomes of a history that cannot be made shorter: bounded tries, one true error, then its own way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.histories import prose, seeded
from governor.store.archive_model import CompactedBy
from governor.tokens.counter import EstimateCounter
from governor.types import AgentName
from tests.harness import Governed, governed
from tests.tool_loop import ToolLoop
from tests.twin_server import Running, small_machine, twin_server

WINDOW = 16_384
ENFORCE = '[compression]\nmode = "enforce"\nstages = ["trim", "stub", "drop"]\ncooldown_tokens = 64\n'


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    machine = small_machine(context_tokens=WINDOW, tiers={"device_tokens": 65_536, "host_tokens": 65_536})
    async with twin_server(machine) as running:
        yield running


@pytest.fixture
async def gateway(twin: Running, tmp_path: Path) -> AsyncIterator[Governed]:
    """Alice is told, bob is not."""
    policies = {"alice": ENFORCE, "bob": ENFORCE + 'exhausted = "pass"\n'}
    async with governed(
        twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob"), policies=policies
    ) as running:
        yield running
        await running.assert_idle()
        await twin.until_idle()


class LongTask:
    """Nearly all of it is the task, which nothing may touch; what follows is short."""

    def __init__(self, gateway: Governed, agent: str, **fields: Any) -> None:
        self._gateway = gateway
        self._agent = agent
        self._fields = fields
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": prose(seeded(3), 8_000)}]

    async def ask(self) -> httpx.Response:
        body = {"model": "tiny-hybrid", "messages": self.messages, "max_tokens": 16} | self._fields
        answer = await self._gateway.chat(self._agent, **body)
        said, asked = prose(seeded(4), 40), prose(seeded(5), 40)
        self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": asked}]
        return answer


async def test_two_misses_one_error_and_then_its_way(gateway: Governed) -> None:
    client = LongTask(gateway, "alice")
    answers = [await client.ask() for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 400, 200, 200, 200, 200]
    error = answers[1].json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {WINDOW} tokens" in error["message"]
    assert "could not make it shorter" in error["message"]
    assert "may not be touched" in error["message"]
    tries = await gateway.archive.compactions(AgentName("alice"))
    assert [each.outcome for each in tries] == ["no_result"] * 2
    assert {each.by for each in tries} == {CompactedBy.GOVERNOR}
    assert all((each.before_tokens or 0) > WINDOW * 0.8 for each in tries)


async def test_nobody_need_be_told(gateway: Governed) -> None:
    client = LongTask(gateway, "bob")
    assert [(await client.ask()).status_code for _ in range(6)] == [200] * 6
    assert len(await gateway.archive.compactions(AgentName("bob"))) == 2


async def test_a_prompt_under_the_trigger_begins_a_new_row(gateway: Governed) -> None:
    client = LongTask(gateway, "bob")
    for _ in range(4):
        await client.ask()
    (await gateway.chat("bob", model="tiny-hybrid", max_tokens=16)).raise_for_status()  # another conversation
    await client.ask()
    assert len(await gateway.archive.compactions(AgentName("bob"))) == 2


async def test_the_owner_may_ask_for_it_at_any_time(gateway: Governed) -> None:
    loop = ToolLoop(gateway, "alice")
    for _ in range(12):
        loop.on_tool()
    await loop.step()
    before = (await gateway.ends())[-1]
    assert before.edits[0] != "compressed"
    gateway.governor.requested.ask(AgentName("alice"))
    await loop.step()
    await loop.step()
    _, shorter, next_ = await gateway.ends()
    assert shorter.edits[0].startswith("compressed: ")
    assert (shorter.usage.prompt_tokens or 0) < 0.55 * (before.usage.prompt_tokens or 0)
    assert next_.edits[0].startswith("head: ")


async def test_another_line_of_the_session_is_no_relief(gateway: Governed) -> None:
    """A client runs a helper with a short prompt under the session's own name, turn for turn."""
    client = LongTask(gateway, "alice", prompt_cache_key="one")
    answers = []
    for number in range(6):
        answers.append((await client.ask()).status_code)
        helper = [{"role": "user", "content": f"Count the files, helper {number}."}]
        fields = {"model": "tiny-hybrid", "messages": helper, "max_tokens": 16, "prompt_cache_key": "one"}
        (await gateway.chat("alice", **fields)).raise_for_status()
    assert answers == [200, 400, 200, 200, 200, 200]
    assert len(await gateway.archive.compactions(AgentName("alice"))) == 2


async def test_a_line_that_goes_on_from_it_is(gateway: Governed) -> None:
    """The client has made its history shorter by itself; when that has grown again, it is tried again."""
    client = LongTask(gateway, "bob", prompt_cache_key="one")
    for _ in range(3):
        await client.ask()
    long, client.messages[0] = client.messages[0], {"role": "user", "content": "Go on, in short."}
    (await client.ask()).raise_for_status()
    client.messages.insert(1, long)
    await client.ask()
    tries = await gateway.archive.compactions(AgentName("bob"))
    assert [each.by for each in tries].count(CompactedBy.GOVERNOR) == 3


async def test_the_error_has_the_policys_reserve_whoever_asked(gateway: Governed) -> None:
    """The owner's own limits are lower, and are none of the client's."""
    client = LongTask(gateway, "alice")
    await client.ask()
    gateway.governor.requested.ask(AgentName("alice"))
    answer = await client.ask()
    assert answer.status_code == 400
    reserve = WINDOW - int(WINDOW * 0.8)
    assert f"at least {reserve} are kept for the answer" in answer.json()["error"]["message"]


async def test_what_the_owner_asked_for_waits_for_its_moment(twin: Running, tmp_path: Path) -> None:
    """Within a chain of calls nothing may be dropped that the next summary could tell of: what nobody could do yet is
    still asked for at the user's next question."""
    policy = ENFORCE.replace('"trim", "stub", "drop"', '"summary", "drop"')
    async with governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": policy}) as gateway:
        loop = ToolLoop(gateway, "alice")
        for _ in range(10):
            loop.on_tool()
        gateway.governor.requested.ask(AgentName("alice"))
        await loop.step()
        loop.on_answer("And what next?")
        await loop.ask()
        ends = [end for end in await gateway.ends() if end.kind != "summary"]
        assert not ends[0].edits[0].startswith("compressed: ")
        assert ends[1].edits[0].startswith("compressed: "), ends[1].flags
        await gateway.assert_idle()
        await twin.until_idle()


class CrashingCounter(EstimateCounter):
    """Counts prompts, and cannot weigh messages."""

    def sizes(self, messages: Sequence[bytes]) -> list[int]:
        raise ZeroDivisionError


async def test_a_fault_of_ours_costs_the_client_nothing(twin: Running, tmp_path: Path) -> None:
    counter, policies = CrashingCounter(), {"alice": ENFORCE + 'exhausted = "pass"\n'}
    async with governed(twin.url, tmp_path, engine_kind="sglang", policies=policies, counter=counter) as gateway:
        client = LongTask(gateway, "alice")
        assert [(await client.ask()).status_code for _ in range(4)] == [200] * 4
        tries = await gateway.archive.compactions(AgentName("alice"))
        assert [each.detail for each in tries] == ["failed with ZeroDivisionError; the log says how"] * 2

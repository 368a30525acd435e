"""A whole governor in front of the twin: several agents, whose turns are logged by the tier that served them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from governor.types import TurnState
from tests.harness import Governed, governed
from tests.twin_server import Running, small_machine, twin_server

AGENTS = ("alice", "bob", "carol", "dave")
TURNS = 4
CHAT = "/v1/chat/completions"


async def talk(gateway: Governed, agent: str, words: int) -> list[dict[str, Any]]:
    """A conversation that grows; its answers."""
    messages = [{"role": "system", "content": f"You are {agent}'s. " + f"{agent} " * words}]
    answers = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{turn}: what now?"})
        answer = await gateway.chat(agent, model="tiny-hybrid", messages=messages, max_tokens=60)
        answers.append(answer.raise_for_status().json())
        said = answers[-1]["choices"][0]["message"]
        messages.append({key: value for key, value in said.items() if value is not None})
    return answers


async def test_four_agents_at_once_and_who_was_served_from_where(tmp_path: Path) -> None:
    """Their contexts are a fifth more than L1: each turn but the first finds its context, in L1 or L2."""
    machine = small_machine(tiers={"device_slots": 48, "host_slots": 96})
    async with (
        twin_server(machine) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", agents=AGENTS) as gateway,
    ):
        talks = await asyncio.gather(*(talk(gateway, agent, words=1400) for agent in AGENTS))
        ends = await gateway.ends()
        await gateway.assert_idle()
        assert await state_of(twin) == (None, 0)
    assert [len(answers) for answers in talks] == [TURNS] * 4
    assert len(ends) == TURNS * len(AGENTS)
    assert {end.state for end in ends} <= {TurnState.OK, TurnState.TRUNCATED}
    usages = [end.usage for end in ends]
    for usage in usages:
        assert usage.cached_device_tokens is not None
        assert usage.cached_host_tokens is not None
        assert usage.cached_storage_tokens is not None
        split = usage.cached_device_tokens + usage.cached_host_tokens + usage.cached_storage_tokens
        assert split == usage.cached_tokens
    cold = [usage for usage in usages if not usage.cached_tokens]
    assert len(cold) == len(AGENTS)
    served = [usage for usage in usages if usage.cached_tokens]
    assert all((usage.prompt_tokens or 0) - (usage.cached_tokens or 0) < 300 for usage in served)
    assert sum(usage.cached_host_tokens or 0 for usage in served) > 0


async def test_clients_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    async with (
        twin_server() as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", agents=AGENTS) as gateway,
    ):
        messages = [{"role": "user", "content": "Go on."}]
        body = {"model": "tiny-hybrid", "messages": messages, "max_tokens": 4000, "stream": True, "ignore_eos": True}

        async def leave(agent: str) -> None:
            async with gateway.client(agent) as client, client.stream("POST", CHAT, json=body) as answer:
                async for _ in answer.aiter_bytes():
                    break

        await asyncio.gather(*(leave(agent) for agent in AGENTS))
        await twin.until_idle(5)
        await gateway.assert_idle()
        assert [end.state for end in await gateway.ends()] == [TurnState.CLIENT_ABORTED] * 4
        assert await state_of(twin) == (None, 0)


async def state_of(twin: Running) -> tuple[str | None, int]:
    state = (await twin.client.get("/twin/state")).json()
    return state["broken_books"], state["live_requests"]

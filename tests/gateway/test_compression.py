"""Histories that grow over their trigger are made shorter on the way to the engine, and stay cached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from governor.store.model import TurnClosed
from tests.harness import Governed, governed
from tests.tool_loop import ToolLoop
from tests.twin_server import Running, small_machine, twin_server

WINDOW = 16_384
ENFORCE = """
[compression]
mode = "enforce"
stages = ["reasoning", "repeated", "superseded", "images", "oversized", "trim", "stub", "drop"]
cooldown_tokens = 512
"""
CHUNK = 1024
"""Of a prefill: as far apart are the states that a prompt can be resumed from."""


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    machine = small_machine(context_tokens=WINDOW, tiers={"device_tokens": 65_536, "host_tokens": 65_536})
    async with twin_server(machine) as running:
        yield running


@pytest.fixture
async def gateway(twin: Running, tmp_path: Path) -> AsyncIterator[Governed]:
    """Alice's prompts are made shorter, bob's are observed, carol's are left alone."""
    policies = {"alice": ENFORCE, "bob": ENFORCE.replace("enforce", "observe")}
    async with governed(
        twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob", "carol"), policies=policies
    ) as gov:
        yield gov
        await gov.assert_idle()
        await twin.until_idle()


async def steps(gateway: Governed, agent: str, count: int) -> list[TurnClosed]:
    loop = ToolLoop(gateway, agent)
    for _ in range(count):
        await loop.step()
    return await gateway.ends()


async def test_a_history_over_its_trigger_gets_short_once_and_goes_on_from_there(gateway: Governed) -> None:
    ends = await steps(gateway, "alice", 26)
    sizes = [end.usage.prompt_tokens or 0 for end in ends]
    [at] = [index for index, end in enumerate(ends) if any(edit.startswith("compressed") for edit in end.edits)]
    assert sizes[at] <= WINDOW // 2 < WINDOW * 0.8 - 1000 < sizes[at - 1]
    assert ends[at].prompt_tokens_counted == sizes[at]
    for before, turn in pairwise(ends[at:]):
        assert turn.edits[0].startswith("head: ")
        known = before.usage.prompt_tokens or 0
        assert known - CHUNK <= (turn.usage.cached_tokens or 0) < (turn.usage.prompt_tokens or 0) < known + 1000


async def test_what_is_only_observed_is_sent_as_it_is(gateway: Governed) -> None:
    ends = await steps(gateway, "bob", 24)
    sizes = [end.usage.prompt_tokens or 0 for end in ends]
    assert sizes == sorted(sizes)
    told = [flag for end in ends for flag in end.flags if flag.startswith("compression_would: ")]
    assert told
    assert not [edit for end in ends for edit in end.edits if "compressed" in edit or "head" in edit]


async def test_without_a_policy_nothing_is_looked_at(gateway: Governed) -> None:
    ends = await steps(gateway, "carol", 24)
    assert not [flag for end in ends for flag in end.flags if "compress" in flag]


async def test_after_a_cut_turns_are_continuations(tmp_path: Path) -> None:
    window = 65_536
    machine = small_machine(context_tokens=window, tiers={"device_tokens": 2 * window, "device_slots": 256})
    async with (
        twin_server(machine) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": ENFORCE}) as gateway,
    ):
        loop = ToolLoop(gateway, "alice")
        for _ in range(86):
            loop.on_tool()
        for _ in range(16):
            await loop.step(lines=4)
        ends = await gateway.ends()
    [cut] = [index for index, end in enumerate(ends) if any(edit.startswith("compressed") for edit in end.edits)]
    after = ends[cut + 1 :]
    assert len(after) >= 8
    cached = sum(end.usage.cached_tokens or 0 for end in after)
    assert cached >= 0.95 * sum(end.usage.prompt_tokens or 0 for end in after)

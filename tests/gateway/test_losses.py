"""What turns lost of their prefixes is named and priced: on the twin, by what was done to its cache; and without any
word of the engine's."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.context import COMPRESSED, FIRST_PROMPT, NOT_CACHED, EngineLoss
from governor.events import PrefixLost
from governor.store.model import StoredTurn
from governor.tokens.breaks import BreakCause
from tests.harness import Governed, governed
from tests.losing import Talk, losing
from tests.residing import until_ready
from tests.sglang_adapter import words
from tests.tool_loop import ToolLoop
from tests.twin_server import small_machine, twin_server

LONG, SHORT = 2_000, 40
"""Words; one is about a token."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cache-") as name:  # pytest's folders are too long for a socket
        yield Path(name)


async def lost(gateway: Governed) -> list[PrefixLost]:
    """By the turn log, but for first prompts."""
    rows: list[StoredTurn] = await gateway.rows()
    return [loss for row in rows for loss in row.losses if loss.cause != FIRST_PROMPT]


async def test_a_first_prompt_has_a_cost_and_what_goes_on_loses_nothing(folder: Path, tmp_path: Path) -> None:
    async with losing(folder, tmp_path) as (_, gateway):
        talk = Talk(gateway, "ann", 1)
        for length in (LONG, SHORT, SHORT):
            await talk.ask(length)
        assert await lost(gateway) == []
        first, *others = await gateway.rows()
        (cost,) = first.losses
        assert cost.tokens == first.closed.usage.prompt_tokens if first.closed else None
        assert cost.seconds is not None
        assert 0 < cost.seconds < 60
        assert [row.losses for row in others] == [(), ()]


async def test_another_agents_flood_evicts(folder: Path, tmp_path: Path) -> None:
    async with losing(folder, tmp_path) as (_, gateway):
        talk = Talk(gateway, "ann", 1)
        await talk.ask(LONG)
        for seed in (100, 200, 300):
            await Talk(gateway, "ben", seed).ask(3_000)
        await talk.ask(SHORT)
        (loss,) = await lost(gateway)
        assert (loss.agent, loss.cause) == ("ann", EngineLoss.EVICTED)
        (one,) = [row for row in await gateway.rows() if row.losses and row.losses[0].cause == EngineLoss.EVICTED]
        assert one.closed is not None
        usage = one.closed.usage
        assert usage.prompt_tokens is not None
        assert 0 < usage.prompt_tokens - (usage.cached_tokens or 0) - (loss.tokens or 0) < 200  # what was new
        assert loss.seconds is not None
        assert loss.margin_s is not None
        ann = next(agent for agent in (await gateway.snapshot()).agents if agent.name == "ann")
        assert [(each.cause, each.count, each.tokens) for each in ann.losses if each.cause != FIRST_PROMPT] == [
            (EngineLoss.EVICTED, 1, loss.tokens)
        ]


async def test_a_flush_is_told_from_an_eviction(folder: Path, tmp_path: Path) -> None:
    async with losing(folder, tmp_path) as (engine, gateway):
        talk = Talk(gateway, "ann", 1)
        await talk.ask(LONG)
        await engine.flush()
        await asyncio.sleep(0.2)  # until it is told
        await talk.ask(SHORT)
        assert [loss.cause for loss in await lost(gateway)] == [EngineLoss.FLUSHED]


@pytest.mark.parametrize("tells", [True, False])
async def test_an_engine_that_was_started_anew_has_nothing(folder: Path, tmp_path: Path, tells: bool) -> None:
    async with losing(folder, tmp_path, tells=tells) as (engine, gateway):
        talk = Talk(gateway, "ann", 1)
        await talk.ask(LONG)
        await engine.stop()
        await until_ready(gateway, is_ready=False)
        await engine.start()
        await until_ready(gateway)
        await talk.ask(SHORT)
        assert [loss.cause for loss in await lost(gateway)] == [EngineLoss.ENGINE_RESTARTED]


async def test_an_engine_that_tells_nothing_leaves_the_cause_open(folder: Path, tmp_path: Path) -> None:
    async with losing(folder, tmp_path, tells=False) as (engine, gateway):
        talk = Talk(gateway, "ann", 1)
        await talk.ask(LONG)
        await engine.flush()
        await talk.ask(SHORT)
        (loss,) = await lost(gateway)
        assert loss.cause == NOT_CACHED
        assert (loss.tokens or 0) > 1_500


async def test_kv_without_a_state_is_of_no_use(folder: Path, tmp_path: Path) -> None:
    """Many short prompts take the states and little of the KV."""
    async with losing(folder, tmp_path, device_slots=10) as (_, gateway):
        talk = Talk(gateway, "ann", 1)
        await talk.ask(LONG)
        for seed in range(100, 1300, 100):
            await Talk(gateway, "ben", seed).ask(100)
        await talk.ask(SHORT)
        losses = await lost(gateway)
        assert EngineLoss.STATE_MISSING in {loss.cause for loss in losses}, losses


async def test_a_clients_break_has_its_place_and_its_price(folder: Path, tmp_path: Path) -> None:
    async with losing(folder, tmp_path) as (_, gateway):
        talk = Talk(gateway, "ann", 1)
        clock = "It is 11:4{}. You are of help. " + words(7, 200)
        talk.messages.append({"role": "system", "content": clock.format(1)})
        await talk.ask(LONG)
        await talk.ask(SHORT)
        talk.messages[0] = {"role": "system", "content": clock.format(2)}
        await talk.ask(SHORT)
        (loss,) = await lost(gateway)
        assert (loss.cause, loss.message) == (BreakCause.VOLATILE, 0)
        assert loss.byte == len(b'{"role":"system","content":"It is 11:4')
        assert (loss.tokens or 0) > 1_900


async def test_what_the_governor_made_shorter_is_its_own(tmp_path: Path) -> None:
    machine = small_machine(context_tokens=16_384, tiers={"device_tokens": 65_536, "host_tokens": 65_536})
    policy = '[compression]\nmode = "enforce"\nstages = ["trim", "stub", "drop"]\n'
    async with (
        twin_server(machine) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", agents=("ann",), policies={"ann": policy}) as gateway,
    ):
        loop = ToolLoop(gateway, "ann")
        for _ in range(26):
            await loop.step()
        await gateway.governor.residency.settled()
        rows = await gateway.rows()
        shorter = [row for row in rows if row.closed and any(edit.startswith(COMPRESSED) for edit in row.closed.edits)]
        assert shorter
        for row in shorter:
            assert row.closed is not None
            (loss,) = row.losses
            assert loss.cause == COMPRESSED
            assert loss.tokens == row.closed.usage.new_tokens
        ours = {loss.cause for row in rows for loss in row.losses}
        assert ours <= {COMPRESSED, FIRST_PROMPT, NOT_CACHED}
        page = (await gateway.snapshot()).agents[0]
        assert {each.cause for each in page.losses} == ours

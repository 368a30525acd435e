"""What is compared with trigger and target is the prompt as it will be sent, also where the engine counts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.routing import Route

from bench.histories import prose, seeded
from tests.harness import governed
from tests.tool_loop import ToolLoop
from tests.twin_server import Running, small_machine, twin_server

WINDOW = 16_384
ENFORCE = '[compression]\nmode = "enforce"\nstages = ["reasoning", "trim", "stub", "drop"]\ncooldown_tokens = 64\n'


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    machine = small_machine(context_tokens=WINDOW, tiers={"device_tokens": 65_536, "host_tokens": 65_536})
    async with twin_server(machine) as running:
        yield running


async def test_reasoning_that_is_never_sent_is_not_counted(twin: Running, tmp_path: Path) -> None:
    """With it the prompt would be over its trigger, and over the window."""
    policy = ENFORCE + "[request]\nstrip_reasoning = true\n"
    async with governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": policy}) as gateway:
        loop = ToolLoop(gateway, "alice")
        for _ in range(8):
            loop.on_tool(lines=4)
            loop.messages[-2]["reasoning_content"] = prose(seeded(3), 2_000)
        (await loop.ask()).raise_for_status()
        end = (await gateway.ends())[-1]
        assert end.usage.prompt_tokens is not None
        assert end.usage.prompt_tokens < 4_000
        assert not [edit for edit in end.edits if "compressed" in edit]
        assert not [flag for flag in end.flags if flag.startswith("compression")]
        await gateway.assert_idle()


async def test_an_engine_that_counts_no_prompt_after_all_is_taken_as_one_that_cannot(
    twin: Running, tmp_path: Path
) -> None:
    """Whether it has no such route, or fails there, a history is not given up for it."""
    routes = twin.server.app.router.routes
    routes[:] = [route for route in routes if isinstance(route, Route) and route.path != "/v1/tokenize"]
    async with governed(twin.url, tmp_path, engine_kind="sglang", policies={"alice": ENFORCE}) as gateway:
        loop = ToolLoop(gateway, "alice")
        for _ in range(20):
            loop.on_tool()
        (await loop.ask()).raise_for_status()
        end = (await gateway.ends())[-1]
        assert end.edits[0].startswith("compressed: "), end.flags
        assert (end.usage.prompt_tokens or WINDOW) <= WINDOW // 2
        await gateway.assert_idle()

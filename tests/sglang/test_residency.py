"""The residency index beside the real engine: what each turn is served was known before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from governor.gateway.sglang_cache import CachePlaces, SglangCache
from tests.harness import governed
from tests.residing import AGENTS, POLICIES, MixedRun, is_known_well, until_known, until_ready
from tests.sglang.server import SglangServer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

BODY = {"temperature": 0, "ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}


async def test_what_turns_are_served_was_known(tmp_path: Path) -> None:
    """With an engine of its own, which is killed in the middle."""
    with SglangServer(tmp_path) as server:
        places = CachePlaces(
            kv_events=server.kv_events_endpoint,
            kv_replay=server.kv_replay_endpoint,
            plugin_socket=server.plugin_socket,
            l3_folder=server.l3,
        )
        cache = SglangCache(server.url, places)
        async with governed(
            server.url, tmp_path / "home", engine_kind="sglang", agents=AGENTS, policies=POLICIES, cache=cache
        ) as gateway:
            await until_known(gateway)

            async def restart() -> None:
                await asyncio.to_thread(server.kill)
                await until_ready(gateway, is_ready=False)
                server.start()
                await asyncio.to_thread(server.wait_ready)
                await until_ready(gateway)
                await until_known(gateway)

            run = MixedRun(gateway, server.url, restart, BODY)
            figures = await run.play(alone=36, at_once=24)
            print("\n".join(run.told))
            assert is_known_well(figures), "\n".join(run.told)
            view = gateway.governor.snapshot().cache
            assert all(tier.served_tokens for tier in view.tiers)
            assert all(tier.written_bytes for tier in view.tiers)
            await gateway.assert_idle()

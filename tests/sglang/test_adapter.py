"""The adapter and the gateway on the real SGLang."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from serve.engines.sglang import Sglang
from tests.sglang.schedulers import stopped_schedulers
from tests.sglang.server import SglangServer
from tests.sglang_adapter import *  # noqa: F403 - tests and fixtures
from tests.sglang_adapter import Served

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


@pytest.fixture
def served(sglang_server: SglangServer) -> Served:
    options = sglang_server.options
    return Served(sglang_server.url, options.context_length, options.max_total_tokens)


async def test_a_dead_scheduler_is_seen_behind_a_server_that_answers(sglang_server: SglangServer) -> None:
    """The one request that a stopped scheduler leaves waiting is the probe's."""
    engine = Sglang(sglang_server.url)
    assert await engine.is_ready()
    with stopped_schedulers(sglang_server.pid):
        await asyncio.sleep(6)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{sglang_server.url}/v1/models")).status_code == 200
        began = time.monotonic()
        assert not await engine.is_ready()
        assert time.monotonic() - began < 40
        assert not await engine.is_ready()
        assert time.monotonic() - began < 41  # the second look did not ask again
    async with asyncio.timeout(60):
        while not await engine.is_ready():  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.2)
    await engine.aclose()

"""What the watch of an engine tells of it."""

from __future__ import annotations

import asyncio

from governor.clock import SystemClock
from governor.events import EventLog
from governor.gateway.engine_watch import EngineWatch
from governor.schedule.events import EngineMode
from serve.engines.sglang import Sglang
from tests.harness import QUICK
from tests.sglang_http import FakeSglang


async def test_an_engine_is_asked_what_it_holds_until_it_tells() -> None:
    told: list[tuple[EngineMode, int | None]] = []
    async with FakeSglang() as fake:
        fake.tells_load = False
        engine = Sglang(fake.url)
        watch = EngineWatch(
            engine, SystemClock(), EventLog(), lambda mode, *_: told.append((mode, watch.capacity.tokens)), times=QUICK
        )
        watching = asyncio.create_task(watch.run())
        async with asyncio.timeout(10):
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            fake.tells_load = True
            while len(told) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await engine.aclose()
    assert told == [(EngineMode.READY, None), (EngineMode.READY, 4096)]

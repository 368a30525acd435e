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


async def test_another_process_is_told_once() -> None:
    told: list[tuple[EngineMode, bool]] = []
    async with FakeSglang() as fake:
        engine = Sglang(fake.url)
        watch = EngineWatch(
            engine,
            SystemClock(),
            EventLog(),
            lambda mode, *_: told.append((mode, watch.is_anew)),
            supervised=True,
            times=QUICK,
        )
        watching = asyncio.create_task(watch.run())

        async def until_ready() -> None:
            async with asyncio.timeout(10):
                while watch.mode is not EngineMode.READY:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await until_ready()
        watch.on_process(EngineMode.COMING, "it died")
        watch.on_process(EngineMode.READY, "")
        await until_ready()
        watch.on_unavailable()  # the same one, for a moment
        await until_ready()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await engine.aclose()
    assert [anew for mode, anew in told if mode is EngineMode.READY] == [False, True, False]


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

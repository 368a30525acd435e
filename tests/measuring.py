"""A bench against the twin in virtual time, and against the scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from msgspec.structs import replace

from governor.cli.bench_engine import connect
from governor.gateway.server import bound_socket
from governor.measure import Result, run_suite
from governor.measure.machine import machine_facts
from governor.measure.options import Options
from governor.measure.result import Case, Measure, Metric
from governor.measure.session import Watcher
from governor.settings import Secret
from serve.doctor.system import LocalSystem
from serve.scripted.engine import ScriptedEngine
from serve.twin.machine import Machine, load_machine
from serve.twin_server.app import TwinServer
from serve.twin_server.settings import TwinServerSettings
from tests.virtual_time import run_in_virtual_time

WINDOW = 262_144
"""The model's own. The longest prompts that were measured leave no room for an answer in the machines' windows."""


def machine_named(name: str, **engine: Any) -> Machine:
    """A shipped machine with the model's window, and other settings of the engine."""
    machine = load_machine(name)
    tiers = replace(machine.engine.tiers, **engine.pop("tiers", {}))
    return replace(machine, engine=replace(machine.engine, context_tokens=WINDOW, tiers=tiers, **engine))


async def measured(
    url: str,
    suite: str,
    options: Options | None = None,
    *,
    repeats: int = 1,
    seed: str = "seed",
    key: Secret | None = None,
    watcher: Watcher | None = None,
    on_interrupted: Callable[[Result], None] = lambda _result: None,
) -> Result:
    """A suite on whatever is there, by this loop's clock."""
    target = await connect(url, key=key, monotonic=asyncio.get_running_loop().time)
    try:
        return await run_suite(
            target,
            suite,
            machine=machine_facts(LocalSystem(), engine_is_local=True),
            governor_version="0",
            seed=seed,
            repeats=repeats,
            options=options,
            watcher=watcher,
            on_interrupted=on_interrupted,
        )
    finally:
        await target.aclose()


def measured_on_twin(machine: Machine, suite: str, options: Options | None = None, *, repeats: int = 1) -> Result:
    """In virtual time, on a twin with nothing in it."""
    return on_twin(machine, lambda url: measured(url, suite, options, repeats=repeats))


def on_twin(machine: Machine, work: Callable[[str], Awaitable[Result]]) -> Result:
    async def whole() -> Result:
        async with _twin(machine) as url:
            return await work(url)

    return run_in_virtual_time(whole())


@asynccontextmanager
async def _twin(machine: Machine) -> AsyncIterator[str]:
    server = TwinServer(machine, TwinServerSettings(), monotonic=asyncio.get_running_loop().time)
    bound = bound_socket("127.0.0.1", 0)
    program = _Unsignalled(
        uvicorn.Config(server.app, lifespan="on", ws="none", log_config=None, timeout_graceful_shutdown=1)
    )
    running = asyncio.create_task(program.serve(sockets=[bound]))
    try:
        while not program.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.engine.tiers.check_integrity()
    finally:
        program.should_exit = True
        await running


class _Unsignalled(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def measured_on_script(
    engine: ScriptedEngine, suite: str, options: Options, *, repeats: int = 1, seed: str = "seed"
) -> Result:
    async with engine:
        return await measured(engine.url, suite, options, repeats=repeats, seed=seed)


def found(result: Result, name: str, metric: Metric, context: int = 0, requests: int = 1) -> Measure:
    """The one figure of a case. Raises :class:`AssertionError` with all that there is."""
    hits = [each for each in result.measures if each.metric is metric and _is(each.case, name, context, requests)]
    assert len(hits) == 1, (name, metric, [(str(each.case), each.metric) for each in result.measures], result.thrown)
    return hits[0]


def _is(case: Case, name: str, context: int, requests: int) -> bool:
    return case.name == name and case.requests == requests and context in (0, case.context_tokens)

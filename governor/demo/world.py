"""One run of the incident: the twin, a governor in front of it, the agents.

Runs on a :class:`~governor.demo.pace.PacedLoop`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from governor import instance
from governor.demo.agents import DemoAgent
from governor.demo.engine import RunningTwin, running_twin
from governor.demo.figures import Mode, RunFigures, StallWatch
from governor.demo.pace import Pace
from governor.demo.policies import policy_text
from governor.gateway.body import BodyLimits
from governor.gateway.engine_watch import WatchTimes
from governor.gateway.relay import AnswerLimits
from governor.gateway.server import bound_socket
from governor.identity.agents import AgentBook
from governor.runtime import Governor, RuntimeConfig
from governor.schedule.events import EngineMode
from governor.settings import Home, Secret
from governor.wiring import EngineTarget, assembled, build_cache
from serve.engines.http import HttpTimeouts
from serve.errors import ServeError
from serve.twin.trace import Trace

_WALL_S = 30.0
"""Longest that a part of ours may take for what is no simulated work, on the wall."""
_STOP_WITHIN_S = 1.0


class World:
    """What runs now. ``figures`` may be asked at any time."""

    def __init__(self, trace: Trace, mode: Mode, life: int) -> None:
        self._mode = mode
        self._life = life
        self._watches = {agent.name: StallWatch(agent.name) for agent in trace.agents}
        self._began_at: float | None = None

    def begin(self) -> None:
        self._began_at = asyncio.get_running_loop().time()

    def now(self) -> float:
        """Seconds since the agents have begun."""
        return 0.0 if self._began_at is None else asyncio.get_running_loop().time() - self._began_at

    def watch(self, agent: str) -> StallWatch:
        return self._watches[agent]

    def figures(self) -> RunFigures:
        now = self.now()
        return RunFigures(
            mode=self._mode,
            life=self._life,
            at_s=None if self._began_at is None else now,
            agents=tuple(watch.figures(now) for watch in self._watches.values()),
        )


async def play(trace: Trace, machine: str, home: Home, pace: Pace, world: World, mode: Mode) -> None:
    """The incident, until this is cancelled; when it is over, the governor stays. What is in ``home`` goes before.

    Raises :class:`~serve.errors.ServeError` when the twin does not come up.
    """
    shutil.rmtree(home.root, ignore_errors=True)
    home.root.mkdir(mode=0o700)
    home.run.mkdir(mode=0o700)
    keys = _agents(trace, mode, home, pace)
    with instance.only_instance(home):
        async with (
            running_twin(machine, home, pace.speed) as twin,
            _governed(twin, home, pace, mode) as (url, governor, running),
        ):
            cards = governor.watch.models
            world.begin()
            scripts = {script.session.agent: script for script in trace.scripts}
            async with asyncio.TaskGroup() as group:
                for agent in trace.agents:
                    living = DemoAgent(
                        agent,
                        scripts[agent.name],
                        url=url,
                        key=keys[agent.name],
                        model=cards[0].id,
                        window_tokens=trace.header.window_tokens or cards[0].window_tokens or 0,
                        watch=world.watch(agent.name),
                        now=world.now,
                    )
                    group.create_task(living.live(), name=agent.name)
            await unless_ended(running, asyncio.Event().wait())


async def unless_ended(running: asyncio.Task[Any], coming: Awaitable[object]) -> None:
    """Wait for what is coming. Raises what ended the governor that it is to come from, or
    :class:`~serve.errors.ServeError`."""
    waiting = asyncio.ensure_future(coming)
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
            raise ServeError("The demo's governor has ended.")
    finally:
        waiting.cancel()


async def _until_ready(governor: Governor, wall_s: float, every_s: float) -> None:
    await governor.watch.wait_until_met(wall_s)
    while governor.watch.mode is not EngineMode.READY:  # noqa: ASYNC110 - it tells of no change
        await asyncio.sleep(every_s)


def _agents(trace: Trace, mode: Mode, home: Home, pace: Pace) -> dict[str, Secret]:
    """Their policy files, and a key for each."""
    home.policies.mkdir(mode=0o700, parents=True)
    book = AgentBook(home.agents, pace)
    for agent in trace.agents:
        (home.policies / f"{agent.name}.toml").write_text(policy_text(mode))
    return {agent.name: book.add(agent.name) for agent in trace.agents}


@asynccontextmanager
async def _governed(
    twin: RunningTwin, home: Home, pace: Pace, mode: Mode
) -> AsyncIterator[tuple[str, Governor, asyncio.Task[None]]]:
    """A governor that other commands find, its URL, and the task that it runs in."""
    wall_s = _WALL_S * pace.speed
    patience = HttpTimeouts(connect_s=wall_s, ask_s=wall_s, abort_s=wall_s)
    told = EngineTarget(url=twin.url, kind="sglang", cache=twin.cache, timeouts=patience)
    target = told if mode is Mode.GOVERNED else EngineTarget(url=twin.url, timeouts=patience)
    token, started_at = instance.new_admin_token(), pace.wall()
    config, cache = _config(pace.speed), build_cache(told)
    with assembled(home, target, token, config=config, clock=pace, cache=cache) as (governor, _):
        bound = bound_socket("127.0.0.1", 0)
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        stop, listening = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(governor.run(bound, stop, listening.set))
        try:
            await unless_ended(running, listening.wait())
            await unless_ended(running, _until_ready(governor, _WALL_S * pace.speed, 0.02 * pace.speed))
            instance.write_note(home, url, started_at, token, twin.url)
            yield url, governor, running
        finally:
            instance.remove_note(home)
            stop.set()
            await running


def _config(speed: float) -> RuntimeConfig:
    """Limits on what people and sockets may take are of the wall, so they are longer in the twin's seconds."""
    body, answers = BodyLimits(), AnswerLimits()
    return RuntimeConfig(
        body_limits=BodyLimits(deadline_s=body.deadline_s * speed),
        answer_limits=AnswerLimits(
            plain_deadline_s=answers.plain_deadline_s * speed, event_deadline_s=answers.event_deadline_s * speed
        ),
        watch_times=WatchTimes(while_coming_s=0.02 * speed, while_ready_s=2.0 * speed, down_after_s=10.0 * speed),
        head_deadline_s=RuntimeConfig().head_deadline_s * speed,
        stall_deadline_s=RuntimeConfig().stall_deadline_s * speed,
        stop_within_s=max(1, round(_STOP_WITHIN_S * speed)),
    )

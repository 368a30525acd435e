"""What ``governor up`` does for an engine that it launched, while it runs: tell its supervisor that answers flow, tell
the owner what is wrong with it, and keep its L3 folder within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from governor.cli.engine import StartedEngine
from governor.runtime import Governor
from governor.snapshot import TurnView
from serve.l3_guard import L3Report, watch_l3
from serve.supervisor import Supervisor

_LOOK_EVERY_S = 2.0
"""Patience with a silent engine is minutes, so a look now and then does, and costs a turn nothing."""
_L3_ALERT = "l3"
_PLUGIN_ALERT = "plugin"


class Flow:
    """Whether answers have grown since the last look."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def has_grown(self, turns: Sequence[TurnView]) -> bool:
        """A turn that ended or was given up is no sign of life; one that has more bytes than before is."""
        before, self._seen = self._seen, {turn.turn_id: turn.generated_bytes for turn in turns}
        return any(size > before.get(turn_id, 0) for turn_id, size in self._seen.items())


@asynccontextmanager
async def cared_for(engine: StartedEngine, governor: Governor) -> AsyncIterator[None]:
    """While inside. Does nothing for an engine that is not ours."""
    tasks = []
    if engine.supervisor is not None:
        tasks.append(asyncio.create_task(_look_after(engine, engine.supervisor, governor)))
    if engine.l3_guard is not None:

        def tell(report: L3Report) -> None:
            governor.watch.set_alert(_L3_ALERT, "; ".join(report.warnings))
            if report.evicted_files:
                governor.residency.relist_l3()

        tasks.append(asyncio.create_task(watch_l3(engine.l3_guard, tell)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _look_after(engine: StartedEngine, supervisor: Supervisor, governor: Governor) -> None:
    flow = Flow()
    while True:
        if flow.has_grown(governor.book.views()):
            supervisor.note_progress()
        governor.watch.set_alert(_PLUGIN_ALERT, engine.plugin_problem)
        await asyncio.sleep(_LOOK_EVERY_S)

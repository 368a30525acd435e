"""Asks the engine how it is while turns run, and tells the scheduler what runs in it, what it holds and serves."""

from __future__ import annotations

import asyncio
import logging

from governor.budget.claim import Sight
from governor.clock import Clock
from governor.schedule.loop import Admission
from serve.engine import Engine

log = logging.getLogger(__name__)

EVERY_S = 1.0
_KEPT = 0.9
"""Of the served share at each turn's end: some ten turns are looked back at."""
_ENOUGH = 5


class ServedShare:
    """Of the prompts that could have come from cache, what did. Pure."""

    def __init__(self) -> None:
        self._expected = 0.0
        self._served = 0.0
        self._turns = 0

    def note(self, expected_tokens: int, cached_tokens: int) -> None:
        """A turn has ended that continued a prompt of ``expected_tokens``, of which ``cached_tokens`` were served."""
        self._expected = self._expected * _KEPT + expected_tokens
        self._served = self._served * _KEPT + min(cached_tokens, expected_tokens)
        self._turns += 1

    @property
    def value(self) -> float | None:
        return self._served / self._expected if self._turns >= _ENOUGH and self._expected else None


class EngineSight:
    """:meth:`run` until cancelled. An engine that tells nothing of its load changes nothing."""

    def __init__(self, engine: Engine, admission: Admission, clock: Clock, every_s: float = EVERY_S) -> None:
        self._engine = engine
        self._admission = admission
        self._clock = clock
        self._every_s = every_s
        self.served = ServedShare()

    async def run(self) -> None:
        while True:
            if self._admission.holds_leases:
                try:
                    await self._look()
                except Exception:
                    log.exception("the engine's load could not be read")
            await asyncio.sleep(self._every_s)

    async def _look(self) -> None:
        asked_at = self._clock.monotonic()
        load = await self._engine.load()
        if load.running is None and load.kv_used_tokens is None:
            return
        running = None if load.running is None else load.running + (load.queued or 0)
        sight = Sight(asked_at=asked_at, running=running, used_tokens=load.kv_used_tokens)
        self._admission.on_sight(sight, self.served.value)

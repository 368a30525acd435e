"""The one owner of the engine model: moves it by the scaled clock, and tells each generation what became of it.

Everything here runs on the event loop and nothing waits for the model: a request posts what it wants, the owner's task
takes it up. Whoever reads the model's figures does it between two steps.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Protocol

import msgspec

from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Admitted, Ask, Ended, EngineEvent, Load, Retracted, Wrote
from serve.twin_server.clock import ScaledClock
from serve.twin_server.counters import Counters
from serve.twin_server.errors import BadRequest
from serve.twin_server.faults import Faults
from serve.twin_server.generation import Batch, Generation, Plan

_BETWEEN_STEPS_S = (0.0005, 0.004, 0.03)
"""Wall seconds between two looks at a model that works: at least; while it writes faster than that; at most."""
_IDLE_LOOK_S = 1.0
"""An idle scheduler publishes its load that often (``idle_sleeper.py``)."""


class Listener(Protocol):
    """Hears of everything that goes into the model and comes out of it."""

    def on_ask(self, ask: Ask) -> None: ...

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        """After each step, also where nothing has happened."""
        ...


class PublishedLoad(msgspec.Struct, frozen=True):
    """What the scheduler has said last of itself."""

    at: float
    """Wall clock."""
    load: Load


class _Abort(msgspec.Struct, frozen=True):
    rid: str


class TwinService:
    """Generations by name. All methods are called on the loop that runs :meth:`run`."""

    def __init__(self, engine: TwinEngine, clock: ScaledClock, faults: Faults) -> None:
        self.engine = engine
        self.clock = clock
        self._faults = faults
        self.counters = Counters()
        self.listeners: list[Listener] = []
        self.published = PublishedLoad(time.time(), engine.load())
        self.outputs = 0
        """How often the scheduler has told somebody something."""
        self._started_at = time.monotonic()
        self._live: dict[str, Generation] = {}
        self._posted: list[tuple[float, Ask | _Abort]] = []
        self._aborting: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stepped = asyncio.Event()
        """Set once, after the next step."""
        self._is_dead = False
        self._is_paused = False

    # What requests want

    def start(self, plans: Sequence[Plan], rid: str | None = None) -> Batch:
        """One generation for each plan. Several get names of their own, whatever the request is called, as in
        SGLang. Raises :class:`BadRequest` for a name that a live generation has."""
        names = [rid] if rid is not None and len(plans) == 1 else [uuid.uuid4().hex for _ in plans]
        if names[0] in self._live:
            raise BadRequest(f"Duplicate request ID detected: {rid}")
        news = asyncio.Event()
        generations = [Generation(name, plan, news) for name, plan in zip(names, plans, strict=True)]
        for generation in generations:
            self._live[generation.rid] = generation
            self._post(generation.plan.ask(generation.rid))
        return Batch(generations, news)

    def abort(self, rid: str) -> None:
        """End it, and every other one whose name begins with this one: so the scheduler compares (``abort_request``).
        A name that nobody has does nothing."""
        if rid not in self._live or self._faults.on_abort():
            return
        self.counters.aborts += 1
        for name in [each for each in self._live if each.startswith(rid)]:
            self._post(_Abort(name))

    def abort_all(self) -> None:
        if self._faults.on_abort():
            return
        self.counters.aborts += 1
        for name in self._live:
            self._post(_Abort(name))

    async def flush(self, patience_s: float) -> bool:
        """Forget L1 and L2 as soon as nothing runs, within ``patience_s`` of the twin; L3 stays."""
        deadline = time.monotonic() + self.clock.wall_s(patience_s)
        while True:
            self._step()
            if not self._is_dead and not self._posted and self.engine.flush():
                self._told(())
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_BETWEEN_STEPS_S[1])

    async def wait_idle(self) -> None:
        """Until every generation has ended."""
        while self._live:
            await self._stepped.wait()

    def abort_lost(self, batch: Batch, after_s: float) -> None:
        """Its client has gone: abort what still runs ``after_s`` of the twin from now."""
        if batch.is_over:
            return
        aborting = asyncio.create_task(self._abort_lost(batch, self.clock.wall_s(after_s)))
        self._aborting.add(aborting)
        aborting.add_done_callback(self._aborting.discard)

    async def _abort_lost(self, batch: Batch, wall_s: float) -> None:
        await asyncio.sleep(wall_s)
        for generation in batch.generations:
            if not generation.is_over:
                self.abort(generation.rid)

    async def wait_alive(self) -> None:
        """Until the scheduler moves."""
        while self._is_dead:
            await self._stepped.wait()

    async def output_after(self, outputs: int, patience_s: float) -> bool:
        """Wait until :attr:`outputs` has passed this number; ``False`` after ``patience_s``, of the twin."""
        try:
            async with asyncio.timeout(self.clock.wall_s(patience_s)):
                while self.outputs == outputs:
                    await self._stepped.wait()
        except TimeoutError:
            return False
        return True

    def pause(self) -> None:
        """``/pause_generation`` in place: nothing goes on, everything stays where it is."""
        self._is_paused = True
        self._set_clock()

    def go_on(self) -> None:
        self._is_paused = False
        self._set_clock()

    # Faults

    @property
    def is_dead(self) -> bool:
        """The scheduler does not move, while the HTTP side answers."""
        return self._is_dead

    @is_dead.setter
    def is_dead(self, dead: bool) -> None:
        if dead and not self._is_dead:
            self._step()
        self._is_dead = dead
        self._set_clock()

    # The owner's task

    @property
    def up_s(self) -> float:
        """Of the twin since the start, were it never stopped."""
        return (time.monotonic() - self._started_at) * self.clock.speed

    @property
    def live(self) -> int:
        """Generations that have not ended."""
        return len(self._live)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._step()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _pause_s(self) -> float:
        due = None if self._is_dead or self._is_paused else self.engine.next_at()
        if due is None:
            return _IDLE_LOOK_S
        shortest, usual, longest = _BETWEEN_STEPS_S
        token_s = self.clock.wall_s(self.engine.cost.decode_step_s)  # the model leaps over many, streams shall not
        return max(min(self.clock.wall_s(due - self.clock.now), max(token_s, usual), longest), shortest)

    def _step(self) -> None:
        if self._is_dead:
            return
        now = self.clock.now
        posted, self._posted = self._posted, []
        for posted_at, wish in posted:
            at = min(max(posted_at, self.engine.now), now)
            if isinstance(wish, Ask):
                for listener in self.listeners:
                    listener.on_ask(wish)
                self.engine.submit(at, wish)
            else:
                self.engine.abort(at, wish.rid)
        events = self.engine.run(now)
        for event in events:
            self._tell(event)
        self._told(events)

    def _told(self, events: Sequence[EngineEvent]) -> None:
        self.published = PublishedLoad(time.time(), self.engine.load())
        for listener in self.listeners:
            listener.on_events(events)
        self._stepped.set()
        self._stepped = asyncio.Event()

    def _tell(self, event: EngineEvent) -> None:
        generation = self._live.get(event.rid)
        if generation is None:
            return
        self.counters.on_event(event, generation)
        self.outputs += isinstance(event, Wrote | Ended)
        match event:
            case Admitted():
                generation.on_admitted(event.cached)
            case Wrote():
                generation.on_wrote(event.stop)
            case Retracted():
                generation.retractions += 1
            case Ended():
                del self._live[event.rid]
                generation.on_ended(event)

    def _post(self, wish: Ask | _Abort) -> None:
        self._posted.append((self.clock.now, wish))
        self._wake.set()

    def _set_clock(self) -> None:
        if self._is_dead or self._is_paused:
            self.clock.stop()
        else:
            self.clock.go()
        self._wake.set()

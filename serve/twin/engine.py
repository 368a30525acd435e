"""The engine model as a whole: requests come, wait, are prefilled, write, end; time passes by what the work costs.

Pure and deterministic: nothing here reads a clock, and only :meth:`TwinEngine.run` moves the engine's own. What is
decided and when is what SGLang 0.5.23's scheduler decides; ``docs/design/twin-engine.md`` has the rules.
"""

from __future__ import annotations

import heapq
from math import inf

import msgspec

from serve.twin.cost import Cost
from serve.twin.engine_decode import Leap
from serve.twin.engine_job import Job, is_too_long
from serve.twin.engine_model import Ask, Blocked, Cached, Ended, EndReason, EngineEvent, EngineSettings, Load
from serve.twin.engine_scheduler import Scheduler, Work
from serve.twin.tiers import Tiers
from serve.twin.tiers_observer import TiersObserver
from serve.twin.tiers_storage import Storage


class _Arrival:
    __slots__ = ("came_at", "job", "sent_at")

    def __init__(self, job: Job, sent_at: float, came_at: float) -> None:
        self.job = job
        self.sent_at = sent_at
        self.came_at = came_at


class _Abort:
    __slots__ = ("rid",)

    def __init__(self, rid: str) -> None:
        self.rid = rid


class TwinEngine:
    """One engine. Times are seconds of its own clock, which starts at 0."""

    def __init__(
        self,
        settings: EngineSettings,
        cost: Cost,
        storage: Storage | None = None,
        observer: TiersObserver | None = None,
    ) -> None:
        """``storage``: what an engine before this one has left on disk. ``observer``: told of changes in the tiers.
        Raises ``ValueError`` for a hybrid model with too few states for one request."""
        self.settings = settings
        self.cost = cost
        self.now = 0.0
        self.tiers = Tiers(settings.tiers, storage, observer)
        self._scheduler = Scheduler(settings, cost, self.tiers)
        self._work: Work | None = None
        """Under way."""
        self._to_come: list[tuple[float, int, _Arrival | _Abort]] = []
        """A heap."""
        self._inbox: list[_Arrival | _Abort] = []
        """Come while a forward pass is under way; the scheduler looks at it afterwards."""
        self._coming: dict[str, _Arrival] = {}
        """Those that the scheduler has not seen."""
        self._numbers = 0

    def submit(self, at: float, ask: Ask) -> None:
        """A request arrives at ``at``, not before ``now``; it is queued ``cost.arrival_s`` later. Its end comes as one
        ``Ended``, also where it is refused. Raises ``ValueError`` for a time that is over, for a rid that is under way,
        and for an output shorter than what is written."""
        if ask.rid in self._coming or ask.rid in self._scheduler.jobs:
            raise ValueError(f"rid {ask.rid!r} is under way")
        if len(ask.output) < ask.writes_tokens or len(ask.prompt) == 0:
            raise ValueError(f"rid {ask.rid!r} has no prompt, or writes more than its output has")
        job = Job(ask, self.settings)
        came_at = at + self.cost.arrival_s(len(ask.prompt))
        self._coming[ask.rid] = arrival = _Arrival(job, at, came_at)
        self._add(at, came_at, arrival)

    def abort(self, at: float, rid: str) -> None:
        """End a request at ``at``, not before ``now``, or when the forward pass under way then has ended. An unknown
        rid does nothing. Raises ``ValueError`` for a time that is over."""
        self._add(at, at, _Abort(rid))

    def run(self, until: float) -> list[EngineEvent]:
        """Go on to ``until``, not before ``now``: all that is known by then, in order of time. ``now`` is ``until``
        afterwards. A caller that wants to see who writes what as it is written gives short steps; what happens, and
        when, is the same. Raises ``ValueError`` for a time that is over."""
        if until < self.now:
            raise ValueError(f"{until} is over, it is {self.now}")
        scheduler = self._scheduler
        while True:
            comes_at = self._to_come[0][0] if self._to_come else inf
            ends_at = self._ends_at()
            when = min(comes_at, ends_at)
            if when > until:
                break
            self.now = max(self.now, when)
            scheduler.catch_up(self.now)
            if comes_at <= ends_at:
                self._take_in(heapq.heappop(self._to_come)[2])
                is_last = not self._to_come or self._to_come[0][0] > when
                if self._work is None and self._inbox and is_last:
                    self._decide()
            else:
                if self._work is not None:
                    scheduler.end_work(self._work, self.now)
                    self._work = None
                self._decide()
        self.now = until
        scheduler.catch_up(until)
        self._tell_written()
        events, scheduler.events = scheduler.events, []
        return events

    def next_at(self) -> float | None:
        """When :meth:`run` would next have something to tell or to decide, not before ``now``; decode steps in between
        are not counted. ``None``: idle, or everybody who waits waits for somebody to come."""
        when = min(self._to_come[0][0] if self._to_come else inf, self._ends_at())
        return None if when == inf else max(when, self.now)

    def load(self) -> Load:
        """A look at it now. Who has been sent and has not arrived is not counted."""
        tree, scheduler, settings = self.tiers.tree, self._scheduler, self.settings.tiers
        capacity = settings.page_floor(settings.device_tokens)
        return Load(
            running=sum(1 for each in scheduler.jobs.values() if each.request is not None),
            waiting=len(scheduler.queue),
            used_tokens=capacity - tree.free_tokens - tree.evictable_tokens,
            held_tokens=capacity - tree.free_tokens,
            capacity_tokens=capacity,
            used_slots=settings.device_slots - tree.free_slots - tree.evictable_slots,
            capacity_slots=settings.device_slots,
            new_token_ratio=scheduler.ratio.current,
        )

    def blocked(self) -> Blocked | None:
        """Whom the last look at the queue found too large for what L1 had. One that was aborted since is told as long
        as the engine is full because of it; ``None``: nobody."""
        blocked, is_full = self._scheduler.blocked, self._scheduler.is_full
        if blocked is None:
            return None
        job = self._scheduler.jobs.get(blocked.rid)
        waits = job is not None and job.request is None
        return msgspec.structs.replace(blocked, is_full=is_full) if waits or is_full else None

    def flush(self) -> bool:
        """Forget L1 and L2; ``False``, and nothing happens, while anybody runs, waits or comes."""
        if self._coming or self._scheduler.jobs:
            return False
        self.tiers.flush()
        self._scheduler.start_anew()
        return True

    def _add(self, at: float, due: float, what: _Arrival | _Abort) -> None:
        if at < self.now:
            raise ValueError(f"{at} is over, it is {self.now}")
        self._numbers += 1
        heapq.heappush(self._to_come, (due, self._numbers, what))

    def _ends_at(self) -> float:
        """When the scheduler has to decide next."""
        if self._work is None:
            return self._scheduler.wakes_at(self.now)
        return self._work.end

    def _take_in(self, what: _Arrival | _Abort) -> None:
        if isinstance(what, _Arrival):
            if self._coming.get(what.job.ask.rid) is not what:
                return  # aborted on its way
            if is_too_long(what.job.ask, self.settings):
                self._refuse(what.job, EndReason.TOO_LONG)
                return
        elif (arrival := self._coming.get(what.rid)) is not None:
            if arrival not in self._inbox:
                if arrival.sent_at <= self.now:
                    self._refuse(arrival.job, EndReason.ABORT)
                return
        elif what.rid not in self._scheduler.jobs:
            return
        self._inbox.append(what)
        if isinstance(self._work, Leap):
            self._work.stop_at(self.now)

    def _refuse(self, job: Job, reason: EndReason) -> None:
        del self._coming[job.ask.rid]
        self._tell_written()
        self._scheduler.events.append(
            Ended(
                at=self.now,
                rid=job.ask.rid,
                reason=reason,
                prompt_tokens=len(job.ask.prompt),
                completion_tokens=0,
                cached=Cached(),
            )
        )

    def _tell_written(self) -> None:
        """Of a leap under way, what has been written by now."""
        if isinstance(self._work, Leap):
            self._scheduler.events += self._work.write(self.tiers, self.now)

    def _decide(self) -> None:
        """A forward pass has ended, or the engine does nothing: it looks at what has come and begins the next one."""
        scheduler = self._scheduler
        for what in self._inbox:
            if isinstance(what, _Abort):
                scheduler.abort(what.rid, self.now)
            else:
                del self._coming[what.job.ask.rid]
                scheduler.jobs[what.job.ask.rid] = what.job
                scheduler.enter(what.job, self.now, what.came_at)
        self._inbox.clear()
        self._work = scheduler.next_work(self.now)
        if isinstance(self._work, Leap):
            self._work.stop_at(scheduler.looks_at(self.now))

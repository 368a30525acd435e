"""What the engine does next, decided whenever a forward pass has ended (``get_next_batch_to_run`` of ``scheduler.py``).

A prefill goes before a decode. Who is in which place is here; when something happens is the caller's, who gets a piece
of work and says when it has ended.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf

from serve.twin.cost import Cost
from serve.twin.engine_admission import Admission, Chunk, ask_storage
from serve.twin.engine_copies import Copies
from serve.twin.engine_decode import Leap, kv_wanted, steps_to_end, steps_with_room
from serve.twin.engine_job import Job
from serve.twin.engine_model import (
    Admitted,
    Blocked,
    Cached,
    Ended,
    EndReason,
    EngineEvent,
    EngineSettings,
    Retracted,
    Wrote,
)
from serve.twin.engine_prefetch import StorageReader
from serve.twin.engine_queue import WaitingQueue
from serve.twin.engine_ratio import NewTokenRatio
from serve.twin.tiers import Tiers
from serve.twin.tiers_model import OutOfCapacity, OutOfSlots

_SPARE_SLOTS = 2
"""Of each running request, besides those it works in: what it has matched, and what it gives to the tree."""


class Prefill:
    """One forward pass over pieces of prompts; of mixed ones also those that decode along."""

    __slots__ = ("chunks", "end", "loads", "mixed")

    def __init__(self, chunks: list[Chunk], mixed: list[Job], loads: list[int], end: float) -> None:
        self.chunks = chunks
        self.mixed = mixed
        self.loads = loads
        self.end = end


Work = Prefill | Leap


class Scheduler:
    """One engine's requests from the queue to their end. ``events`` collects what there is to tell."""

    def __init__(self, settings: EngineSettings, cost: Cost, tiers: Tiers) -> None:
        self.settings = settings
        self.cost = cost
        self.tiers = tiers
        self.queue = WaitingQueue(settings, tiers)
        self.running: list[Job] = []
        """Those that decode."""
        self.chunked: Job | None = None
        """Whose prompt is computed in part."""
        self.ratio = NewTokenRatio(settings.schedule_conservativeness)
        self.running_limit = running_limit(settings)
        self.events: list[EngineEvent] = []
        self.blocked: Blocked | None = None
        """By the last look at the queue."""
        self.jobs: dict[str, Job] = {}
        """All that have come and not ended."""
        self.start_anew()
        self._full = False
        self._decodes_first = 0
        """Decode steps before the next prefill is looked for."""
        self._has_new_chunk = False
        """Of the chunked job, computed and not given to the tree yet."""
        self._has_retracted = False
        """Before the decode step under way."""

    def start_anew(self) -> None:
        """The tiers have forgotten L1 and L2, and all copies under way."""
        self.copies = Copies(self.tiers, self.cost)
        self.reader = StorageReader(self.tiers, self.cost)

    # Time in the background

    @property
    def background_at(self) -> float:
        return min(self.copies.next_at, self.reader.next_at)

    def catch_up(self, now: float) -> None:
        """All copies and reads that have ended by ``now``."""
        while (when := self.background_at) <= now:
            if self.copies.next_at == when:
                self.copies.advance()
            else:
                self.reader.advance()

    def wakes_at(self, now: float) -> float:
        """When somebody who waits, though the engine is not full, may find things changed; infinity: never."""
        if not self.queue.jobs and self.chunked is None:
            return inf
        deadlines = (self.reader.deadline(each.read) for each in self.queue if each.read is not None)
        return min(self.background_at, min((each for each in deadlines if each > now), default=inf))

    def looks_at(self, now: float) -> float:
        """When those who wait are looked at again while others decode; infinity: not before one of these leaves."""
        return self.wakes_at(now) if self.queue.jobs and not self.is_full else inf

    @property
    def is_full(self) -> bool:
        """Whether nobody who waits is looked at before somebody leaves (``batch_is_full``)."""
        return self._full and not self.settings.preempts

    # Coming and going

    def enter(self, job: Job, now: float, came_at: float) -> None:
        """A job joins the queue, or is refused."""
        refused = self.queue.refused_for(job)
        if refused is not None:
            if refused is not job:
                self.queue.jobs.remove(refused)
            self._drop_read(refused, now)
            self._end(refused, EndReason.QUEUE_FULL, now)
        if refused is job:
            return
        job.entered_at = came_at
        ask_storage(job, self.tiers, self.reader, now)
        self.queue.jobs.append(job)

    def abort(self, rid: str, now: float) -> None:
        """Where it waits, nothing is left; of a prompt in part its chunks stay; where it decodes, it finishes with its
        next token."""
        job = self.jobs.get(rid)
        if job is None:
            return
        if job is self.chunked:
            self.chunked = None
            self._has_new_chunk = False
            self.tiers.retract(job.held)
        elif job.request is None:
            self.queue.jobs.remove(job)
            self._drop_read(job, now)
        else:
            job.abort()
            return
        self._end(job, EndReason.ABORT, now)
        self.copies.note(now)

    def _drop_read(self, job: Job, now: float) -> None:
        if job.read is not None:
            self.reader.stop(job.read, now)
            self.tiers.prefetches.release(job.read.prefetch)
            job.read = None
        if job.staged is not None:
            self.tiers.prefetches.release(job.staged)
            job.staged = None

    def _leave(self, job: Job) -> None:
        self.running.remove(job)
        self._full = False
        self.tiers.finish(job.held)

    def _end(self, job: Job, reason: EndReason, now: float) -> None:
        del self.jobs[job.ask.rid]
        self.events.append(
            Ended(
                at=now,
                rid=job.ask.rid,
                reason=reason,
                prompt_tokens=len(job.ask.prompt),
                completion_tokens=job.written,
                cached=job.cached or Cached(),
                prefilled_tokens=job.prefilled,
            )
        )

    # What is next

    def next_work(self, now: float) -> Work | None:
        """Decide. ``None``: nothing can be done before :attr:`wakes_at`, or before somebody comes."""
        if self.chunked is not None and self._has_new_chunk:
            self._checkpoint(self.chunked)
            self._has_new_chunk = False
        self.copies.note(now)
        # Copies that are made at once hold nothing back any more (``check_hicache_events``).
        self.catch_up(now)
        work: Work | None = None
        if not self._defers_prefill():
            work = self._prefill(now)
        if work is None and self.running:
            work = self._decode(now)
            if work is None:
                # The last one that decoded has lost its place, which is room for a prompt.
                return self.next_work(now)
        if work is None and not self.jobs:
            self.ratio.reset()
        self.copies.note(now)
        return work

    def end_work(self, work: Work, now: float) -> None:
        """A piece of work has ended; of a leap all steps up to now."""
        if isinstance(work, Leap):
            self._end_leap(work, now)
        else:
            self._end_prefill(work, now)
        self.copies.note(now)

    def _defers_prefill(self) -> bool:
        """``--prefill-decode-interval``."""
        if not self.running:
            self._decodes_first = 0
        return self._decodes_first > 0

    # Prefill

    def _prefill(self, now: float) -> Prefill | None:
        if self.settings.preempts or not self.running:
            self._full = False
        if (self._full or not self.queue.jobs) and self.chunked is None:
            return None
        has_place = len(self.running) < self.running_limit or self.settings.preempts
        if not has_place and self.chunked is None:
            self._full = True
            self.blocked = None
            return None
        self.queue.sort()
        admission = Admission(
            self.settings, self.tiers, self.running, ratio=self.ratio.current, running_limit=self.running_limit
        )
        if self.chunked is not None:
            admission.go_on(self.chunked, self.queue)
        self._full = admission.scan(self.queue, self.reader, now) or self._full
        self.blocked = admission.blocked
        for job in admission.preempted:
            self._requeue(job, now)
        chunks = self._take(admission)
        if not chunks:
            return None
        if self.chunked is None or any(each.job is self.chunked for each in chunks):
            self.chunked = next((each.job for each in chunks if not each.is_last), None)
        self._tell_admitted(admission, now)
        self._decodes_first = self.settings.prefill_decode_interval or 0
        return self._begin_prefill(chunks, now)

    def _take(self, admission: Admission) -> list[Chunk]:
        """Take KV for what was admitted. The engine would end where there is none; here the chunk is cut to what
        there is, and who has just come waits on."""
        chunks: list[Chunk] = []
        taken: set[Job] = set()
        for chunk in admission.chunks:
            job = chunk.job
            if job is self.chunked:
                room = self.tiers.available_tokens - self.settings.tiers.page_tokens
                chunk = Chunk(job, chunk.start, min(chunk.tokens, max(room, 0)))  # noqa: PLW2901
            try:
                if chunk.tokens > 0:
                    self.tiers.extend(job.held, chunk.tokens)
                    chunks.append(chunk)
                    taken.add(job)
            except OutOfCapacity:
                if job is not self.chunked:
                    self.tiers.retract(job.held)
                    job.request = None
                    self._full = bool(chunks or self.running)
        self.queue.jobs = [each for each in self.queue if each not in taken]
        return chunks

    def _tell_admitted(self, admission: Admission, now: float) -> None:
        for job, cached in admission.admitted.items():
            if job.request is not None:
                self.events.append(Admitted(at=now, rid=job.ask.rid, cached=cached, waited_s=now - job.entered_at))

    def _begin_prefill(self, chunks: list[Chunk], now: float) -> Prefill:
        cost = self.cost
        loads = list(self.tiers.loads.running)
        seconds = sum(cost.host_read_time(self.tiers.loads.running[each].tokens) for each in loads)
        seconds += sum(cost.prefill_s(each.start, each.tokens) for each in chunks)
        seconds -= cost.prefill_step_s * (len(chunks) - 1)
        mixed: list[Job] = []
        if self.settings.mixed_chunk and self.running and self._has_room_to_decode(self.running):
            mixed = list(self.running)
            kv_tokens = sum(each.held.computed_tokens for each in mixed)
            # The weights are read once for all.
            seconds += cost.decode_s(len(mixed), kv_tokens) - cost.decode_step_s
        return Prefill(chunks, mixed, loads, now + seconds)

    def _end_prefill(self, work: Prefill, now: float) -> None:
        for number in work.loads:
            self.tiers.loads.finish(number)
        for chunk in work.chunks:
            job = chunk.job
            job.prefilled += chunk.tokens
            if not chunk.is_last:
                self._has_new_chunk = True
                self._full = False
                continue
            if not job.is_done:
                self._tell_written(job, now)
            self.running.append(job)
            if job.is_done:
                self._finish(job, now)
            else:
                self._checkpoint(job)
        for job in work.mixed:
            self.tiers.decode(job.held, job.output(job.written - 1, job.written))
            self._tell_written(job, now)
            if job.is_done:
                self._finish(job, now)

    def _tell_written(self, job: Job, now: float) -> None:
        self.events.append(Wrote(at=now, rid=job.ask.rid, start=job.written, stop=job.written + 1))
        job.written += 1

    def _finish(self, job: Job, now: float) -> None:
        self._leave(job)
        self._end(job, job.end_reason, now)

    def _checkpoint(self, job: Job) -> None:
        # An engine would end where it has no state left; its request goes on without one to be resumed from.
        with suppress(OutOfSlots):
            self.tiers.checkpoint(job.held)

    # Decode

    def _decode(self, now: float) -> Leap | None:
        steps = steps_to_end(self.running)
        if self._decodes_first and (self.chunked is not None or self.queue.jobs):
            steps = min(steps, self._decodes_first)
        elif self._looks_every_step():
            steps = 1
        steps = steps_with_room(self.running, self.tiers, steps)
        if steps == 0:
            steps = 1
            if not self._has_room_to_decode(self.running):
                self._retract(now)
        return Leap(now, self.running, self.cost, steps) if self.running else None

    def _looks_every_step(self) -> bool:
        """Somebody waits for whom the next step may change something. With priorities a full engine is looked at, too;
        but once the ratio falls no more, no step leaves more room than there was."""
        if self.chunked is not None:
            return True
        if self._full and not (self.settings.preempts and self.ratio.is_falling):
            return False
        return any(each.read is None for each in self.queue)

    def _end_leap(self, leap: Leap, now: float) -> None:
        self.events += leap.write(self.tiers, now)
        self.ratio.decay(leap.done - int(self._has_retracted))
        self._has_retracted = False
        self._decodes_first = max(0, self._decodes_first - leap.done)
        for job in [each for each in self.running if each.is_done]:
            self._finish(job, now)

    def _has_room_to_decode(self, jobs: list[Job]) -> bool:
        """Evicts what is missing (``check_decode_mem``)."""
        return self.tiers.device.room_for(kv_wanted(jobs, self.tiers))

    def _retract(self, now: float) -> None:
        """``retract_decode``: those who have written most go on."""
        kept = sorted(self.running, key=lambda each: (each.written, -len(each.ask.prompt)), reverse=True)
        retracted: list[Job] = []
        while len(kept) > 1 and (not retracted or not self._has_room_to_decode(kept)):
            job = kept.pop()
            self.tiers.retract(job.held, others=len(kept))
            retracted.append(job)
        if len(kept) == 1 and not self._has_room_to_decode(kept):
            job = kept.pop()
            self.tiers.retract(job.held)
            self._end(job, EndReason.OUT_OF_MEMORY, now)
        self.running = [each for each in self.running if each in kept]
        self.ratio.on_retracted(self.running)
        self._has_retracted = bool(self.running)
        self._full = False
        for job in retracted:
            job.retract()
            self._requeue(job, now)

    def _requeue(self, job: Job, now: float) -> None:
        self.events.append(Retracted(at=now, rid=job.ask.rid))
        self.enter(job, now, now)


def running_limit(settings: EngineSettings) -> int:
    """``--max-running-requests``, cut to what the states are enough for (``kv_cache_configurator.py:3062``). Raises
    ``ValueError`` where they are not enough for one."""
    tiers = settings.tiers
    if not tiers.has_states:
        return settings.max_running_requests
    limit = tiers.device_slots // (tiers.slots_per_request + _SPARE_SLOTS)
    if limit == 0:
        raise ValueError(f"{tiers.device_slots} states are too few for a request to run")
    return min(settings.max_running_requests, limit)

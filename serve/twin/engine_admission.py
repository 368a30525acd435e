"""Who is prefilled next: one pass over the queue with its budgets (``PrefillAdder`` of ``schedule_policy.py``,
``_get_new_batch_prefill_raw`` of ``scheduler.py``).

The first that does not fit ends the pass, whoever stands behind it. Nothing is computed here; KV is taken by whoever
runs the pass.
"""

from __future__ import annotations

from enum import Enum, auto

from serve.twin.engine_job import Job
from serve.twin.engine_model import Blocked, Cached, EngineSettings, QueuePolicy
from serve.twin.engine_prefetch import StorageReader
from serve.twin.engine_queue import WaitingQueue, prefill_work
from serve.twin.tiers import Tiers
from serve.twin.tiers_model import OutOfCapacity
from serve.twin.tiers_request import Request
from serve.twin.tiers_tree import Walk

PREEMPTION_THRESHOLD = 10
"""``--priority-scheduling-preemption-threshold``: by how much a priority must be higher."""

ASKED_AT_MOST = 8
"""``--hicache-storage-prefetch-retry-max-attempts``."""
STAGED_REFUSALS = 32
"""``max_staged_admission_defers`` of ``buffer_mode/pipeline.py``."""


class Verdict(Enum):
    CONTINUE = auto()
    NO_TOKEN = auto()
    """L1 has too little, now or by what is expected; nobody is looked at until somebody has left."""
    OTHER = auto()
    """This forward pass is full."""


class Chunk:
    """What one forward pass computes of one prompt."""

    __slots__ = ("is_last", "job", "start", "tokens")

    def __init__(self, job: Job, start: int, tokens: int) -> None:
        self.job = job
        self.start = start
        self.tokens = tokens
        self.is_last = start + tokens == len(job.context)


class Admission:
    """One pass. Afterwards ``chunks`` is the forward pass, in this order, and ``admitted`` those who were waiting, with
    what need not be computed for them."""

    def __init__(
        self,
        settings: EngineSettings,
        tiers: Tiers,
        running: list[Job],
        *,
        ratio: float,
        running_limit: int,
    ) -> None:
        self.settings = settings
        self.tiers = tiers
        self.running = running
        self.running_limit = running_limit
        self.chunks: list[Chunk] = []
        self.admitted: dict[Job, Cached] = {}
        self.preempted: list[Job] = []
        self.blocked: Blocked | None = None
        self.chunked: Job | None = None
        """Whose prompt goes on in the pass after this one."""
        self._ratio = ratio
        self._page = settings.tiers.page_tokens
        mixed = len(running) if settings.mixed_chunk else 0
        self._chunk_left = settings.chunked_prefill_tokens - mixed
        self._input_left = settings.max_prefill_tokens - mixed
        self._reserved = mixed + sum(each.reserved_tokens(ratio) for each in running)
        """KV of L1 that others will take, now or by what is expected."""
        self._reserved_now = mixed
        self._reserved_slots = 0

    # Budgets

    @property
    def _left(self) -> float:
        return self.tiers.available_tokens - self._reserved

    def _state(self) -> Verdict:
        if self._left <= 0 or self.tiers.available_tokens - self._reserved_now <= 0:
            return Verdict.NO_TOKEN
        if self._input_left <= 0 or self._chunk_left <= 0:
            return Verdict.OTHER
        return Verdict.CONTINUE

    def _add(self, chunk: Chunk) -> None:
        tokens = self.settings.tiers.page_ceil(chunk.tokens)
        self._reserved += tokens + self._page + (chunk.job.expected_tokens if chunk.is_last else 0)
        self._reserved_now += tokens + self._page
        self._input_left -= tokens
        self._chunk_left -= tokens
        self._reserved_slots += self.settings.tiers.slots_per_request - chunk.job.held.slots + 1
        self.chunks.append(chunk)
        if not chunk.is_last:
            self.chunked = chunk.job

    # The prompt that has begun

    def go_on(self, job: Job, queue: WaitingQueue) -> None:
        """The next chunk of a prompt. It goes first, and where nothing is left it is not made smaller: it has to come
        to its end to leave (``add_chunked_req``)."""
        left = int(self._left)
        most = min(self._chunk_left, left) if left > 0 else self._chunk_left
        start = job.held.computed_tokens
        most = min(most, self._limit_for_shorter(job, queue))
        self._add(Chunk(job, start, min(len(job.context) - start, max(most, 1))))

    def _limit_for_shorter(self, job: Job, queue: WaitingQueue) -> int:
        """``shortest_prefill_chunk_limit``."""
        budget, page = self._chunk_left, self._page
        if self.settings.queue_policy is not QueuePolicy.SHORTEST_PREFILL or budget < 2 * page:
            return budget
        kept = 0
        for other in queue:
            work = prefill_work(other)
            charge = self.settings.tiers.page_ceil(work)
            if work >= job.held.left_tokens or kept + charge > budget - page:
                break
            kept += charge
        return (budget - kept) // page * page if kept else budget

    # The queue

    def scan(self, queue: WaitingQueue, reader: StorageReader, now: float) -> bool:
        """Look at those who wait, in order. Returns whether the engine is full: then it is of no use to look again
        before somebody has left."""
        preempts = self.settings.preempts
        goes_on = self.chunked is not None
        full = False
        for job in list(queue):
            if self._state() is Verdict.OTHER:
                break
            if len(self.chunks) >= self.running_limit - len(self.running):
                full = True
            if full and not (preempts and self._preempt_for(job, queue)):
                break
            if job.read is not None:
                if not reader.poll(job.read, now):
                    continue
                job.storage_start, job.storage_tokens = job.read.gained_start, job.read.gained_tokens
                job.staged = job.read.prefetch if job.read.prefetch.is_staged else None
                job.read = None
            walk = self.tiers.look(job.context.cut(0, len(job.context) - 1))
            if self._has_lost(job, walk) and job.asks < ASKED_AT_MOST:
                job.asks += 1
                if ask_storage(job, self.tiers, reader, now):
                    continue
            verdict = self._admit(job, walk, goes_on=goes_on)
            if verdict is Verdict.CONTINUE:
                continue
            if verdict is Verdict.NO_TOKEN:
                full = bool(self.chunks or self.running)
            break
        return full

    def _has_lost(self, job: Job, walk: Walk) -> bool:
        """Whether it would find less than when L3 was asked; what was read for it may make up for that
        (``prepare_staged_prefetch``)."""
        if job.staged is None:
            return walk.device_tokens + walk.host_tokens < job.asked_from
        if not self.tiers.prefetches.is_lost(job.staged):
            return False
        self.tiers.prefetches.release(job.staged)
        job.staged = None
        return True

    def _admit(self, job: Job, walk: Walk, *, goes_on: bool) -> Verdict:
        """``add_one_req``: its verdict is about the next one once this one is in."""
        tiers, tree = self.tiers, self.tiers.tree
        # What it would find is not to be counted as room for it.
        lock = tree.lock(walk.device)
        try:
            wanted = len(job.context) - walk.device_tokens + job.expected_tokens + self._page
            if wanted >= self._left or not self._has_slots():
                self.blocked = Blocked(rid=job.ask.rid, wanted_tokens=wanted, free_tokens=int(self._left))
                return Verdict.NO_TOKEN
            tokens = self._chunk_tokens(job, walk.device_tokens + walk.host_tokens, goes_on=goes_on)
            if tokens <= 0:
                return Verdict.OTHER
            request: Request | None
            try:
                request = tiers.admit(job.context, job.ask.priority, walk, job.staged)
            except OutOfCapacity:
                request = None
        finally:
            tree.unlock(lock)
        if request is None:
            return self._refuse(job, goes_on=goes_on)
        job.request = request
        if tiers.settings.is_buffer_only:
            job.staged = None
            job.storage_start, job.storage_tokens = request.device_hit_tokens, request.host_hit_tokens
        start = request.computed_tokens
        # What was promised by L2 and did not come is computed.
        tokens = self._chunk_tokens(job, start, goes_on=goes_on)
        if tokens <= 0:
            tiers.retract(request)
            job.request = None
            return Verdict.OTHER
        self.admitted[job] = cached = _cached(job, start, request.host_hit_tokens)
        job.cached = job.cached or cached
        self._add(Chunk(job, start, tokens))
        return self._state()

    def _refuse(self, job: Job, *, goes_on: bool) -> Verdict:
        """L1 has no room for what is to be loaded. With what was read from L3 it is tried again some times, if there is
        somebody to make room; then that is let go, and computed (``defer_staged_admission``)."""
        if job.staged is None:
            return Verdict.NO_TOKEN
        job.staged_refusals += 1
        if job.staged_refusals < STAGED_REFUSALS and (self.running or self.chunks):
            return Verdict.OTHER
        self.tiers.prefetches.release(job.staged)
        job.staged = None
        return self._admit(job, self.tiers.look(job.context.cut(0, len(job.context) - 1)), goes_on=goes_on)

    def _chunk_tokens(self, job: Job, start: int, *, goes_on: bool) -> int:
        """What this pass computes of it: all, or whole pages up to what the pass has left; 0: nothing."""
        page_floor = self.settings.tiers.page_floor
        left = len(job.context) - start
        if self.settings.tiers.page_ceil(left) <= self._chunk_left:
            return left
        if goes_on and self.settings.queue_policy is QueuePolicy.SHORTEST_PREFILL:
            return 0
        return page_floor(start + page_floor(self._chunk_left)) - start

    def _has_slots(self) -> bool:
        """States for it to work in, and one to give to the tree after the pass. The engine does not ask, and ends
        where there are none; its limit of running requests is to see to it."""
        if not self.settings.tiers.has_states:
            return True
        wanted = self.settings.tiers.slots_per_request + 1
        return self.tiers.available_slots - self._reserved_slots >= wanted

    def _preempt_for(self, job: Job, queue: WaitingQueue) -> bool:
        """``preempt_to_schedule``: those of much lower priority leave, if their expected KV makes room enough."""
        missing = len(job.context) + job.expected_tokens - self._left
        leaving: list[Job] = []
        for other in sorted(self.running, key=lambda each: (-queue.urgency(each), -each.entered_at)):
            if queue.urgency(other) - queue.urgency(job) <= PREEMPTION_THRESHOLD:
                break
            leaving.append(other)
            missing -= other.reserved_tokens(self._ratio)
            if missing <= 0:
                break
        if not leaving or missing > 0:
            return False
        for other in leaving:
            self._reserved -= other.reserved_tokens(self._ratio)
            self.running.remove(other)
            self.tiers.retract(other.held, others=len(self.running))
            other.retract()
        self.preempted += leaving
        return True


def ask_storage(job: Job, tiers: Tiers, reader: StorageReader, now: float) -> bool:
    """Ask L3 for what L1 and L2 do not have of a job that waits: when it comes, and again where it has lost some of it
    meanwhile (``_prefetch_kvcache``, ``_prefetch_after_device_hit_loss`` of ``scheduler.py``). Whether it waits."""
    if not tiers.settings.has_storage:
        return False
    asked = job.context.cut(0, len(job.context) - 1)
    walk = tiers.look(asked)
    job.asked_from = walk.device_tokens + walk.host_tokens
    prefetch = tiers.prefetches.start(asked, walk)
    job.read = reader.ask(prefetch, now) if prefetch is not None else None
    return job.read is not None


def _cached(job: Job, prefix_tokens: int, host_tokens: int) -> Cached:
    """``split_cached_prefix_by_tier``: what L3 has brought counts as L3's wherever it is now."""
    host_start = prefix_tokens - host_tokens
    storage_end = min(prefix_tokens, job.storage_start + job.storage_tokens)
    storage = max(0, storage_end - job.storage_start)
    storage_in_host = max(0, storage_end - max(host_start, job.storage_start))
    host = host_tokens - storage_in_host
    return Cached(device=prefix_tokens - host - storage, host=host, storage=storage)

"""Who waits, and in which order they are looked at (``SchedulePolicy`` of ``schedule_policy.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from serve.twin.engine_job import Job
from serve.twin.engine_model import EngineSettings, QueuePolicy
from serve.twin.tiers import Tiers
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import EvictionPolicy

MATCHED_AT_MOST = 128
"""A longer queue is not sorted by what the cache has (``WAITING_QUEUE_PREFIX_MATCH_MAX``)."""
REFRESH_INTERVAL = 32
"""Every so many looks the waiting requests' prefixes are made recent (``WAITING_PREFIX_REFRESH_INTERVAL``)."""
SHARED_TOKENS = 32
"""Of two requests that share so much beyond what the cache has, one waits for the other
(``IN_BATCH_PREFIX_CACHING_*_THRESHOLD``)."""


class WaitingQueue:
    """Jobs that are in the engine and do not run."""

    def __init__(self, settings: EngineSettings, tiers: Tiers) -> None:
        self.settings = settings
        self.tiers = tiers
        self.jobs: list[Job] = []
        self._looks = 0

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def urgency(self, job: Job) -> int:
        """The smaller, the sooner."""
        return job.ask.priority if self.settings.lower_priority_first else -job.ask.priority

    def refused_for(self, job: Job) -> Job | None:
        """Whom the limit costs its place when ``job`` comes: itself, or one of lower priority
        (``_abort_on_queued_limit``)."""
        limit = self.settings.max_queued_requests
        if limit is None or len(self.jobs) < limit:
            return None
        if self.settings.priority_scheduling and self.jobs:
            last = max(self.jobs, key=lambda each: (self.urgency(each), each.entered_at))
            if self.urgency(job) < self.urgency(last):
                return last
        return job

    def sort(self) -> None:
        """Before they are looked at (``calc_priority``)."""
        match self.settings.queue_policy:
            case QueuePolicy.FCFS:
                if self.settings.priority_scheduling:
                    self.jobs.sort(key=lambda each: (self.urgency(each), each.entered_at))
                self._refresh()
            case QueuePolicy.LPM:
                if len(self.jobs) <= MATCHED_AT_MOST:
                    later = self._match()
                    self.jobs.sort(key=lambda each: inf if each in later else -each.matched_tokens)
            case QueuePolicy.SHORTEST_PREFILL:
                later = self._match()
                self.jobs.sort(key=lambda each: (each in later, prefill_work(each), each.entered_at))

    def _match(self) -> set[Job]:
        """What the cache has of each; and who had better wait since another one computes the same first."""
        later: set[Job] = set()
        firsts: list[Key] = []
        for job in self.jobs:
            seen = self.tiers.match(job.context.cut(0, len(job.context) - 1))
            job.matched_tokens = seen.device_tokens + seen.host_tokens
            if seen.device_tokens <= SHARED_TOKENS:
                if any(first.common(job.context, 0) >= SHARED_TOKENS for first in firsts):
                    later.add(job)
                else:
                    firsts.append(job.context)
        return later

    def _refresh(self) -> None:
        """The first in the queue becomes the most recent, so that it falls last (``_touch_waiting_prefixes``)."""
        if self.jobs and self.settings.tiers.eviction is EvictionPolicy.LRU:
            if self._looks % REFRESH_INTERVAL == 0:
                for job in reversed(self.jobs[:MATCHED_AT_MOST]):
                    self.tiers.match(job.context)
            self._looks += 1


def prefill_work(job: Job) -> int:
    """Tokens to compute, as the queue saw it last."""
    return max(1, len(job.context) - job.matched_tokens)

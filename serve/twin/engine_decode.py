"""Decode steps of the same requests as one leap: who has written what, and when, is computed and not stepped through.

A leap keeps where it began, so that looking at it half way changes nothing of what comes after: times and tokens of a
step are the same however often somebody has looked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import floor

from serve.twin.cost import Cost
from serve.twin.engine_job import Job
from serve.twin.engine_model import EngineEvent, Wrote
from serve.twin.tiers import Tiers

_ROUNDING = 1e-9
"""A sum of fractions of tokens that is a whole number is one, whatever its last bits say."""


class Leap:
    """Steps 1 to ``steps`` of the jobs that decode together."""

    __slots__ = ("_cost", "_kv_tokens", "_starts", "_tokens_a_step", "done", "jobs", "start", "steps")

    def __init__(self, start: float, jobs: Sequence[Job], cost: Cost, steps: int) -> None:
        self.start = start
        self.jobs = list(jobs)
        self.steps = steps
        self.done = 0
        """Steps whose tokens are written."""
        self._cost = cost
        self._starts = [(each.written, each.carry) for each in jobs]
        self._kv_tokens = sum(each.held.computed_tokens for each in jobs)
        self._tokens_a_step = sum(each.accept_length for each in jobs)

    def ends(self, step: int) -> float:
        """When a step has ended; 0: the start."""
        if step == 0:
            return self.start
        return self.start + self._cost.decode_s(len(self.jobs), self._kv_tokens, step, self._tokens_a_step)

    @property
    def end(self) -> float:
        return self.ends(self.steps)

    def stop_at(self, when: float) -> None:
        """Something comes at ``when``: the step under way then is the last one."""
        if when < self.end:
            self.steps = max(self.done, bisect_left(range(self.steps), when, key=self.ends))

    def write(self, tiers: Tiers, until: float) -> list[EngineEvent]:
        """What has been written by ``until``, as far as it was not told yet."""
        step = self.steps if until >= self.end else bisect_right(range(self.steps), until, key=self.ends) - 1
        if step <= self.done:
            return []
        first_at, self.done = self.ends(self.done + 1), step
        at = self.ends(step)
        events: list[EngineEvent] = []
        for job, (written, carry) in zip(self.jobs, self._starts, strict=True):
            tokens, rest = written_after(step, carry, job.accept_length)
            job.carry = rest
            stop = min(written + tokens, job.total_tokens)
            if stop > job.written:
                # A step writes the KV of the token before it.
                tiers.decode(job.held, job.output(job.written - 1, stop - 1))
                events.append(Wrote(at=at, rid=job.ask.rid, start=job.written, stop=stop, first_at=first_at))
                job.written = stop
        return events


def written_after(steps: int, carry: float, accept_length: float) -> tuple[int, float]:
    """Whole tokens that ``steps`` yield, and the fraction that is left."""
    exact = carry + steps * accept_length
    tokens = floor(exact + _ROUNDING)
    return tokens, max(exact - tokens, 0.0)


def steps_to_end(jobs: Sequence[Job]) -> int:
    """Until the first of them has written all it will."""
    return min(_steps_to_write(each, each.total_tokens - each.written) for each in jobs)


def _steps_to_write(job: Job, tokens: int) -> int:
    steps = max(1, floor((tokens - job.carry) / job.accept_length))
    while written_after(steps, job.carry, job.accept_length)[0] < tokens:
        steps += 1
    return steps


def steps_with_room(jobs: Sequence[Job], tiers: Tiers, most: int) -> int:
    """Of the next ``most`` steps, how many find free KV without evicting any; may be 0."""
    free = tiers.tree.free_tokens - tiers.settings.page_tokens

    def wanted(steps: int) -> int:
        return kv_wanted(jobs, tiers, steps)

    if wanted(most) <= free:
        return most
    return bisect_right(range(1, most + 1), free, key=wanted)


def kv_wanted(jobs: Sequence[Job], tiers: Tiers, steps: int = 1) -> int:
    """Tokens of L1 in whole pages that ``steps`` steps take (``new_tokens_required_next_decode``)."""
    page_ceil = tiers.settings.page_ceil
    tokens = 0
    for job in jobs:
        at = job.held.computed_tokens
        more = min(written_after(steps, job.carry, job.accept_length)[0], job.total_tokens - job.written)
        tokens += page_ceil(at + more) - page_ceil(at)
    return tokens

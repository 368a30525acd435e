"""When what L3 is asked for arrives: one reader, one request's span after another, cut by the engine's policy.

What a prefetch changes in the tiers is :mod:`serve.twin.tiers_prefetch`'s; here it gets its times.
"""

from __future__ import annotations

from collections import deque
from math import inf

from serve.twin.cost import Cost
from serve.twin.tiers import Tiers
from serve.twin.tiers_prefetch import Prefetch


class StorageRead:
    """One request's span: asked for, answered, read."""

    __slots__ = ("blocked_since", "gained_start", "gained_tokens", "is_read", "prefetch", "reads_since", "tokens")

    def __init__(self, prefetch: Prefetch) -> None:
        self.prefetch = prefetch
        self.tokens: int | None = None
        """That L3 has and that are read; ``None``: it has not answered."""
        self.reads_since = 0.0
        self.is_read = False
        """All of it is there. L2's tree gets it when the queue comes to its request; nobody can evict it before
        (``_handle_prefetch_result``)."""
        self.blocked_since: float | None = None
        """When the request would have been run for the first time."""
        self.gained_start = 0
        self.gained_tokens = 0
        """What L2 has got by it, once it has ended."""


class StorageReader:
    """The engine's reading thread (``prefetch_io_aux_func``), and who waits for it."""

    def __init__(self, tiers: Tiers, cost: Cost) -> None:
        self.tiers = tiers
        self.cost = cost
        self._queue: deque[StorageRead] = deque()
        self._parked: deque[StorageRead] = deque()
        """Answered, with no room to be read yet (``buffer_only``)."""
        self._busy: StorageRead | None = None
        self._busy_until = inf

    @property
    def next_at(self) -> float:
        """When it has an answer or has read what it reads; infinity: it has nothing to do."""
        return self._busy_until

    def ask(self, prefetch: Prefetch, now: float) -> StorageRead:
        read = StorageRead(prefetch)
        self._queue.append(read)
        self._go_on(now)
        return read

    def advance(self) -> None:
        """What was to happen at ``next_at`` happens."""
        now, read = self._busy_until, self._busy
        if read is None:
            return
        if read.tokens is None:
            read.tokens = self.tiers.prefetches.answer(read.prefetch)
            if read.prefetch.is_reading:
                self._read(read, now)
                return
            if read.prefetch.is_parked:
                self._parked.append(read)
            # Otherwise the tiers have ended it: there was nothing to read, or no room.
        else:
            read.is_read = True
        self._busy = None
        self._go_on(now)

    def is_pending(self, read: StorageRead) -> bool:
        return read is self._busy or read in self._queue or read in self._parked

    def poll(self, read: StorageRead, now: float) -> bool:
        """The queue has come to its request: whether it may run, which ends the read where its policy says so
        (``_can_terminate_prefetch``)."""
        self._unpark(now)
        if read.is_read:
            self.stop(read, now)
        if not self.is_pending(read):
            return True
        if read.blocked_since is None:
            read.blocked_since = now
        if now >= self.deadline(read):
            self.stop(read, now)
            return True
        return False

    def deadline(self, read: StorageRead) -> float:
        """When its policy gives it up; infinity: never, or its request has not come to its turn yet."""
        seconds = self.tiers.prefetches.deadline_s(read.prefetch)
        if seconds is None or read.blocked_since is None:
            return inf
        return read.blocked_since + seconds

    def stop(self, read: StorageRead, now: float) -> None:
        """End it with what it has read by now. Nothing to do for one that has ended."""
        if read.is_read and read.tokens is not None:
            read.is_read = False
            self._finish(read, read.tokens)
        if not self.is_pending(read):
            return
        done = 0
        if read is self._busy and read.tokens and self.cost.storage_read_token_s > 0:
            done = int((now - read.reads_since) / self.cost.storage_read_token_s)
        self._finish(read, done)
        if read is self._busy:
            self._busy = None
            self._go_on(now)
        elif read in self._parked:
            self._parked.remove(read)
        else:
            self._queue.remove(read)

    def _finish(self, read: StorageRead, tokens: int) -> None:
        kept = self.tiers.settings.page_floor(min(tokens, read.prefetch.taken_tokens))
        read.gained_tokens = self.tiers.prefetches.finish(read.prefetch, tokens)
        read.gained_start = read.prefetch.start + kept - read.gained_tokens

    def _go_on(self, now: float) -> None:
        if self._busy is None and self._queue:
            self._busy = self._queue.popleft()
            if self._busy.prefetch.is_reading:
                self._read(self._busy, now)
            else:
                self._busy_until = now + self.cost.storage_read_s
        elif self._busy is None:
            self._busy_until = inf

    def _read(self, read: StorageRead, now: float) -> None:
        read.reads_since = now
        self._busy_until = now + self.cost.storage_read_token_s * (read.tokens or 0)

    def _unpark(self, now: float) -> None:
        """Who has waited longest for room goes first, others wait behind it."""
        while self._parked:
            read = self._parked[0]
            read.tokens = self.tiers.prefetches.answer(read.prefetch)
            if read.prefetch.is_parked:
                return
            self._parked.popleft()
            if read.prefetch.is_reading:
                self._queue.append(read)
                self._go_on(now)

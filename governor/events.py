"""Events: what has happened, as small frozen values, and the log that lets a dashboard resume where it was.

The admin API sends these as SSE; ``tui`` knows only these types.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import ClassVar

import msgspec

from governor.types import TurnKind, TurnState, Usage, Verdict


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """Base of all events; ``at`` is Unix time in seconds."""

    at: float


class TurnStarted(Event, frozen=True, kw_only=True):
    """A turn came through the door."""

    turn_id: str
    agent: str
    route: str


class TurnQueued(Event, frozen=True, kw_only=True):
    """A turn waits; ``reason`` says for what."""

    turn_id: str
    agent: str
    reason: str


class TurnGranted(Event, frozen=True, kw_only=True):
    """A turn goes to the engine."""

    turn_id: str
    agent: str
    queued_ms: float


class TurnFirstToken(Event, frozen=True, kw_only=True):
    turn_id: str
    agent: str
    ttft_ms: float


class TurnPaused(Event, frozen=True, kw_only=True):
    """A running turn was stopped and has given its place back; ``reason`` says for whom."""

    turn_id: str
    agent: str
    reason: str


class TurnResumed(Event, frozen=True, kw_only=True):
    """A paused turn goes on where it was."""

    turn_id: str
    agent: str
    paused_ms: float


class TurnDecided(Event, frozen=True, kw_only=True):
    """The scheduler has decided about a turn: the line that explains it, with the figures it was decided by. Sizes are
    KV tokens. The turn log keeps these."""

    turn_id: str
    agent: str
    verdict: Verdict
    why: str
    """For the owner: may name other agents and their turns."""
    position: int | None = None
    """Its place among those that wait; 1 is looked at first. ``None``: it does not wait."""
    waiting: int
    running: int
    """Turns, with this decision done."""
    needs_tokens: int | None = None
    """What the turn takes, as if it ran alone; ``None``: unknown."""
    booked_tokens: int
    """Of all leases, with this decision done."""
    free_tokens: int | None = None
    """Neither booked nor used otherwise; ``None``: the engine does not tell what it has."""


class TurnEnded(Event, frozen=True, kw_only=True):
    """A turn's one end, with what it cost."""

    turn_id: str
    agent: str
    state: TurnState
    kind: TurnKind | None = None
    usage: Usage = Usage()
    cap_applied: int | None = None
    finish_reason: str | None = None
    reason: str | None = None
    duration_ms: float | None = None
    ttft_ms: float | None = None


class Compacted(Event, frozen=True, kw_only=True):
    """A conversation was made shorter, by the governor or by its client, or a try to do so came to nothing. ``None`` is
    unknown."""

    turn_id: str
    agent: str
    by: str
    """``governor`` or ``client``."""
    outcome: str
    """``accepted``, ``would`` (observed only) or the name of a miss."""
    before_tokens: int | None
    after_tokens: int | None
    detail: str = ""


class PrefixLost(Event, frozen=True, kw_only=True):
    """A turn computed what the engine had computed before. One for each cause; a turn may have several. The turn log
    keeps them. ``None`` is unknown."""

    turn_id: str
    agent: str
    cause: str
    """See ``docs/design/prefix-breaks.md``. ``first_prompt`` is no loss."""
    tokens: int | None
    seconds: float | None = None
    """Of computing them, by the engine's speed at that time."""
    margin_s: float | None = None
    """How far ``seconds`` may be off."""
    message: int | None = None
    """Where the client's prompt left what it had sent; ``None``: before all messages, or it did not."""
    byte: int | None = None
    detail: str = ""


class EngineChanged(Event, frozen=True, kw_only=True):
    """The engine's state: ``starting``, ``ready``, ``busy``, ``down``, ``failed``, ``stopped``."""

    state: str
    detail: str = ""


class PolicyChanged(Event, frozen=True, kw_only=True):
    """Policies were read anew. ``problem`` is set when a file was bad and the last good one still holds."""

    agent: str
    problem: str | None = None


class OwnerActed(Event, frozen=True, kw_only=True):
    """The owner has done something to the governor, or tried to (:mod:`governor.acts`)."""

    who: str
    """``owner via`` ``top``, ``cli``, ``web`` or ``api``."""
    action: str
    target: str
    """An agent, a turn, or ``policies``."""
    outcome: str
    """``done``, ``unchanged`` (all was so already) or ``refused``."""
    detail: str = ""


class Alert(Event, frozen=True, kw_only=True):
    """Something the owner should see: a mismatch, a store that cannot write."""

    name: str
    detail: str


class Gap(Event, frozen=True, kw_only=True):
    """Events between ``after`` and the next one sent are gone: reload ``/governor/state``."""

    after: int


AnyEvent = (
    TurnStarted
    | TurnQueued
    | TurnGranted
    | TurnFirstToken
    | TurnPaused
    | TurnResumed
    | TurnDecided
    | TurnEnded
    | Compacted
    | PrefixLost
    | EngineChanged
    | PolicyChanged
    | OwnerActed
    | Alert
    | Gap
)


class Numbered(msgspec.Struct, frozen=True):
    """An event with its place in the log."""

    id: int
    event: AnyEvent


class EventLog:
    """A bounded log of events with increasing ids, and its live followers. Owned by one event loop."""

    CAPACITY: ClassVar[int] = 4096

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring: deque[Numbered] = deque(maxlen=capacity)
        self._last_id = 0
        self._closed = False
        self._followers: set[Follower] = set()
        self._listeners: list[Callable[[AnyEvent], None]] = []

    def listen(self, listener: Callable[[AnyEvent], None]) -> None:
        """Tell of each event as it is published; for what must miss none. It must be quick, and raise nothing."""
        self._listeners.append(listener)

    @property
    def last_id(self) -> int:
        return self._last_id

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """No more events will come: followers end after what is left. May be repeated."""
        self._closed = True
        for follower in self._followers:
            follower.news.set()

    def publish(self, event: AnyEvent) -> int:
        """Append and wake followers. Never blocks; a slow follower loses events and is told by a :class:`Gap`."""
        self._last_id += 1
        self._ring.append(Numbered(self._last_id, event))
        for listener in self._listeners:
            listener(event)
        for follower in self._followers:
            follower.news.set()
        return self._last_id

    def since(self, last_seen: int) -> list[Numbered]:
        """Events after ``last_seen``, oldest first, led by a :class:`Gap` when some are gone.

        A ``last_seen`` from another life of the process (larger than ours) is treated as a gap, too.
        """
        if last_seen > self._last_id:
            return [Numbered(0, Gap(at=0.0, after=last_seen)), *self._ring]
        count = self._last_id - last_seen
        if count > len(self._ring):
            first = self._last_id + 1 - len(self._ring)
            return [Numbered(first - 1, Gap(at=0.0, after=last_seen)), *self._ring]
        return list(islice(reversed(self._ring), count))[::-1]

    @contextmanager
    def follower(self, last_seen: int) -> Iterator[Follower]:
        """A reader of events after ``last_seen``, to be used from the same event loop."""
        follower = Follower(self, last_seen)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)


class Follower:
    """Reads an :class:`EventLog` from one place on."""

    def __init__(self, event_log: EventLog, last_seen: int) -> None:
        self._log = event_log
        self._last_seen = last_seen
        self.news = asyncio.Event()

    async def next(self, timeout_s: float) -> list[Numbered] | None:
        """Events since the last call, waiting for one; empty when none came in time, ``None`` at the log's end."""
        self.news.clear()
        batch = self._log.since(self._last_seen)
        if not batch and self._log.closed:
            return None
        if not batch:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.news.wait()
            except TimeoutError:
                return []
            batch = self._log.since(self._last_seen)
        self._last_seen = self._log.last_id
        return batch

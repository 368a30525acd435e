"""All that the dashboard knows at one moment, and how each update changes it. Pure: no clock, no I/O, no widget.

Figures come from the snapshot; events fill the log and the histories of agents. Everything is bounded, however many
names and events there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from governor import events
from governor.context import ContextPage
from governor.events import AnyEvent
from governor.pages import EngineLogPage, PolicyPage
from governor.snapshot import Snapshot
from tui.client import Disconnected, Happened, Loaded, Update
from tui.rates import Sample, sampled

LOG_ROWS = 500
MOST_AGENTS = 64
"""With a row, or a history, of their own."""
HISTORY = 40
"""Turns of an agent, and compactions."""

STEPS = (
    events.TurnStarted,
    events.TurnQueued,
    events.TurnGranted,
    events.TurnFirstToken,
    events.TurnPaused,
    events.TurnResumed,
    events.TurnDecided,
)
"""What happens between a turn's arrival and its end: of these, decisions are kept, apart from the log."""

Page = ContextPage | PolicyPage | EngineLogPage
T = TypeVar("T")


class Fetched(msgspec.Struct, frozen=True):
    """A page that was asked for."""

    page: Page


class NotFetched(msgspec.Struct, frozen=True):
    """A page could not be had: ``what`` is ``context``, ``policy`` or ``engine log``."""

    what: str
    why: str


News = Update | Fetched | NotFetched


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known, at one moment."""

    snapshot: Snapshot | None = None
    gone: Disconnected | None = None
    """Set while nothing is heard: the snapshot is old then."""
    log: tuple[AnyEvent, ...] = ()
    """Ended turns and notices, newest first, at most :data:`LOG_ROWS`."""
    decisions: tuple[AnyEvent, ...] = ()
    """Of the scheduler, newest first, at most :data:`LOG_ROWS`."""
    ended: Mapping[str, tuple[events.TurnEnded, ...]] = {}
    """By agent, newest first."""
    compacted: Mapping[str, tuple[events.Compacted, ...]] = {}
    """By agent, newest first."""
    lost: Mapping[str, tuple[events.PrefixLost, ...]] = {}
    """What turns computed again, by agent, newest first."""
    samples: tuple[Sample, ...] = ()
    """Of this life of the governor, oldest first."""
    context: ContextPage | None = None
    """Of the agent that is looked at."""
    policy: PolicyPage | None = None
    engine_log: EngineLogPage | None = None
    missing: Mapping[str, str] = {}
    """Why a page could not be had, by what it is."""

    @property
    def life(self) -> float | None:
        """Names the running governor, among those before and after it."""
        return None if self.snapshot is None else self.snapshot.started_at


def updated(picture: Picture, update: News) -> Picture:
    """The picture after one update."""
    match update:
        case Loaded():
            return _loaded(picture, update.snapshot)
        case Disconnected():
            return msgspec.structs.replace(picture, gone=update)
        case Happened():
            return _happened(picture, update.event)
        case Fetched():
            return _fetched(picture, update.page)
        case NotFetched():
            return msgspec.structs.replace(picture, missing={**picture.missing, update.what: update.why})


def updated_by_all(picture: Picture, updates: Iterable[News]) -> Picture:
    for update in updates:
        picture = updated(picture, update)
    return picture


def turned_to(picture: Picture, agent: str) -> Picture:
    """Another agent is looked at: what is known of the one before goes."""
    pages = [page for page in (picture.context, picture.policy) if page is not None]
    if pages and all(page.agent == agent for page in pages):
        return picture
    missing = {what: why for what, why in picture.missing.items() if what not in {"context", "policy"}}
    return msgspec.structs.replace(picture, context=None, policy=None, missing=missing)


def _loaded(picture: Picture, snapshot: Snapshot) -> Picture:
    before = picture.samples if picture.life == snapshot.started_at else ()
    return msgspec.structs.replace(picture, snapshot=snapshot, gone=None, samples=sampled(before, snapshot))


def _happened(picture: Picture, event: AnyEvent) -> Picture:
    match event:
        case events.TurnDecided():
            return msgspec.structs.replace(picture, decisions=_led(picture.decisions, event, LOG_ROWS))
        case _ if isinstance(event, STEPS):
            return picture
    log = _led(picture.log, event, LOG_ROWS)
    match event:
        case events.TurnEnded():
            return msgspec.structs.replace(picture, log=log, ended=_noted(picture.ended, event.agent, event))
        case events.Compacted():
            return msgspec.structs.replace(picture, log=log, compacted=_noted(picture.compacted, event.agent, event))
        case events.PrefixLost():
            return msgspec.structs.replace(picture, log=log, lost=_noted(picture.lost, event.agent, event))
    return msgspec.structs.replace(picture, log=log)


def _led(before: tuple[AnyEvent, ...], event: AnyEvent, most: int) -> tuple[AnyEvent, ...]:
    return (event, *before[: most - 1])


def _noted(before: Mapping[str, tuple[T, ...]], name: str, event: T) -> Mapping[str, tuple[T, ...]]:
    """With the event; the name that has been silent longest goes where there are too many."""
    after = dict(before)
    own = after.pop(name, ())
    if len(after) >= MOST_AGENTS:
        del after[next(iter(after))]
    after[name] = (event, *own[: HISTORY - 1])
    return after


def _fetched(picture: Picture, page: Page) -> Picture:
    match page:
        case ContextPage():
            what, changed = "context", msgspec.structs.replace(picture, context=page)
        case PolicyPage():
            what, changed = "policy", msgspec.structs.replace(picture, policy=page)
        case EngineLogPage():
            what, changed = "engine log", msgspec.structs.replace(picture, engine_log=page)
    missing = {each: why for each, why in picture.missing.items() if each != what}
    return msgspec.structs.replace(changed, missing=missing)

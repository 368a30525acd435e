"""What each agent did when: a turn as a row of phases, an agent's turns in as few rows as do not overlap. Pure.

Here because the picture in the terminal and the plot draw the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from governor.simulate.result import Result, TurnRow, WaitPlace
from governor.types import AgentName


class Phase(StrEnum):
    """What a turn does at a moment."""

    HELD = "held"
    """At the governor: not yet granted, or paused."""
    QUEUED = "queued"
    """In the engine's queue."""
    PREFILL = "prefill"
    """On the engine, no token yet."""
    DECODE = "decode"


class Span(msgspec.Struct, frozen=True):
    """A phase of a turn."""

    start_s: float
    end_s: float
    phase: Phase


class Lane(msgspec.Struct, frozen=True):
    """One agent. Each track holds spans that do not overlap, in order of time."""

    agent: AgentName
    tracks: tuple[tuple[Span, ...], ...]
    failed_s: tuple[float, ...]
    """When a turn of it ended without an answer."""


def lanes(result: Result) -> list[Lane]:
    """By name."""
    agents = sorted({row.agent for row in result.turns})
    return [_lane(agent, result.of(agent)) for agent in agents]


def phases(row: TurnRow) -> list[Span]:
    """A turn from arrival to end, without gaps: its waits, and between them prefill until the first token and decode
    after it."""
    spans: list[Span] = []
    at = row.arrived_s
    for wait in sorted(row.waits, key=lambda wait: wait.at_s):
        start, end = max(at, wait.at_s), min(row.ended_s, wait.at_s + wait.seconds)
        if end <= start:
            continue
        spans += _working(row, at, start)
        spans.append(Span(start, end, Phase.HELD if wait.place is WaitPlace.GOVERNOR else Phase.QUEUED))
        at = end
    return [*spans, *_working(row, at, row.ended_s)]


def _working(row: TurnRow, start: float, end: float) -> Iterator[Span]:
    first = end if row.first_token_s is None else min(max(row.first_token_s, start), end)
    if first > start:
        yield Span(start, first, Phase.PREFILL)
    if end > first:
        yield Span(first, end, Phase.DECODE)


def _lane(agent: AgentName, rows: Sequence[TurnRow]) -> Lane:
    tracks: list[list[Span]] = []
    for row in sorted(rows, key=lambda row: row.arrived_s):
        spans = phases(row)
        if not spans:
            continue
        track = next((track for track in tracks if track[-1].end_s <= spans[0].start_s), None)
        if track is None:
            tracks.append(spans)
        else:
            track += spans
    failed = tuple(row.ended_s for row in rows if row.first_token_s is None)
    return Lane(agent, tuple(map(tuple, tracks)), failed)


def shares(spans: Iterable[Span], start_s: float, end_s: float, columns: int) -> list[dict[Phase, float]]:
    """Time cut into equal columns: seconds of each phase in each, over all the spans."""
    found: list[dict[Phase, float]] = [{} for _ in range(columns)]
    width = (end_s - start_s) / columns
    if width <= 0:
        return found
    for span in spans:
        first = max(0, int((span.start_s - start_s) / width))
        last = min(columns - 1, int((span.end_s - start_s) / width))
        for column in range(first, last + 1):
            left = start_s + column * width
            seconds = min(span.end_s, left + width) - max(span.start_s, left)
            if seconds > 0:
                found[column][span.phase] = found[column].get(span.phase, 0.0) + seconds
    return found

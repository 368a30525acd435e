"""Tokens per second, from one snapshot to the next. Pure.

Snapshots have sums of turns that ended. A turn that is open counts with its prompt once that is read, and with an
estimate of what it has written, which its end replaces: else an answer of ten minutes would be a stand-still and a
peak. So these rates are estimates, and are shown as such. They are never negative.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from governor.snapshot import Snapshot

BYTES_PER_TOKEN = 4
"""Of answers, where the engine has not told yet."""
_KEPT = 64
_LEAST_APART_S = 0.9
_OVER_S = 20.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Sums since the governor started, open turns included."""

    at: float
    """Unix time."""
    read_tokens: float
    """Of prompts, whether computed or from a cache."""
    written_tokens: float


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second over the last 20 s; ``None``: not known yet."""

    read: float | None = None
    written: float | None = None
    curve: tuple[float | None, ...] = ()
    """Written, from sample to sample, the newest last."""


def sampled(before: tuple[Sample, ...], snapshot: Snapshot) -> tuple[Sample, ...]:
    """With what this snapshot says, if it is far enough from the last."""
    if before and snapshot.now - before[-1].at < _LEAST_APART_S:
        return before
    read = float(sum(agent.prompt_tokens for agent in snapshot.agents))
    written = float(sum(agent.completion_tokens for agent in snapshot.agents))
    for turn in snapshot.turns:
        written += turn.generated_bytes / BYTES_PER_TOKEN
        if turn.phase in {"decode", "paused"}:
            read += turn.prompt_tokens or 0
    return (*before[-_KEPT + 1 :], Sample(at=snapshot.now, read_tokens=read, written_tokens=written))


def rates(samples: Sequence[Sample], points: int) -> Rates:
    """Of these samples, with ``points`` of the curve."""
    if len(samples) < 2:
        return Rates()
    last = samples[-1]
    first = next(sample for sample in samples if last.at - sample.at <= _OVER_S)
    first = samples[-2] if first is last else first
    pairs = tuple(itertools.pairwise(samples))[-points:]
    return Rates(
        read=_per_s(last.read_tokens - first.read_tokens, last.at - first.at),
        written=_per_s(last.written_tokens - first.written_tokens, last.at - first.at),
        curve=tuple(_per_s(new.written_tokens - old.written_tokens, new.at - old.at) for old, new in pairs),
    )


def _per_s(tokens: float, seconds: float) -> float | None:
    return max(0.0, tokens) / seconds if seconds > 0 else None

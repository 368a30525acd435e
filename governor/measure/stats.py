"""The few statistics that a result needs. Pure, and the same on every run: what is drawn at random has a fixed seed.

Medians and quartiles, because a figure of a machine has a long tail on one side. Two sets are compared by Mann and
Whitney's test, exact, since there are a handful of values; the ratio of their medians has a bootstrap interval.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from math import comb
from statistics import median

_RESAMPLES = 4000
_SEED = 20_260_101


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest. Raises :class:`ValueError` without values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ratio_interval(ours: Sequence[float], theirs: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap of ``median(theirs) / median(ours)`` (Efron and Tibshirani 1993, 13.3)."""
    source = random.Random(_SEED)  # noqa: S311 - resampling
    ratios = []
    for _ in range(_RESAMPLES):
        base = median(source.choices(ours, k=len(ours)))
        if base:
            ratios.append(median(source.choices(theirs, k=len(theirs))) / base)
    rest = (1 - level) / 2
    return (quantile(ratios, rest), quantile(ratios, 1 - rest)) if ratios else (float("nan"), float("nan"))


def rank_sum_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Two-sided probability, were both of one distribution, of ranks as far apart as these (Mann and Whitney 1947).
    Exact; ties count half."""
    n, m = len(ours), len(theirs)
    wins = sum((b > a) + 0.5 * (b == a) for a in ours for b in theirs)
    extreme = min(wins, n * m - wins)
    ways = sum(_ways(n, m, u) for u in range(int(extreme) + 1))
    return min(1.0, 2 * ways / comb(n + m, n))


def least_p(n: int, m: int) -> float:
    """What :func:`rank_sum_p` says at best of ``n`` and ``m`` values."""
    return min(1.0, 2 / comb(n + m, n))


@cache
def _ways(n: int, m: int, wins: int) -> int:
    """Orders of ``n`` and ``m`` values in which the second ones win so often."""
    if wins < 0:
        return 0
    if n == 0 or m == 0:
        return int(wins == 0)
    return _ways(n - 1, m, wins - m) + _ways(n, m - 1, wins)

"""Least squares without negative coefficients, for the few unknowns of a cost. Pure; lowest layer of the fit.

The best non-negative solution is the plain one over some of the unknowns with the others at 0. With six unknowns there
are 63 choices, so all are tried, which needs no iteration and no tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

_TIE = 1e-9
"""A larger choice must be better by more than this share, or this much, to be preferred."""
_SINGULAR = 1e-12


class Equation(NamedTuple):
    """``known + factors . x = measured``."""

    factors: Sequence[float]
    measured: float
    """Above 0."""
    known: float = 0.0


def relative_fit(equations: Sequence[Equation], unknowns: int) -> list[float]:
    """The unknowns, each 0 or more, with the least sum of squared errors relative to what was measured. Where several
    choices do equally well the one with the fewest and earliest unknowns is taken, the others are 0."""
    rows = [[factor / each.measured for factor in each.factors] for each in equations]
    targets = [1 - each.known / each.measured for each in equations]
    scales = [max(abs(row[index]) for row in rows) or 1.0 for index in range(unknowns)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    best = [0.0] * unknowns
    least = sum(target**2 for target in targets)
    for size in range(1, min(unknowns, len(rows)) + 1):
        for chosen in combinations(range(unknowns), size):
            part = [[row[index] for index in chosen] for row in scaled]
            found = _solve(part, targets)
            if found is None or min(found) < 0:
                continue
            error = sum((_dot(row, found) - target) ** 2 for row, target in zip(part, targets, strict=True))
            if error < least * (1 - _TIE) - _TIE:
                least = error
                best = [0.0] * unknowns
                for index, value in zip(chosen, found, strict=True):
                    best[index] = value / scales[index]
    return best


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))


def _solve(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float] | None:
    """Least squares of ``row . x = target``: the normal equations by Gauss; ``None`` where they do not tell ``x``."""
    size = len(rows[0])
    left = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    right = [sum(row[i] * target for row, target in zip(rows, targets, strict=True)) for i in range(size)]
    largest = max(left[i][i] for i in range(size))
    for pivot in range(size):
        swap = max(range(pivot, size), key=lambda index: abs(left[index][pivot]))
        left[pivot], left[swap] = left[swap], left[pivot]
        right[pivot], right[swap] = right[swap], right[pivot]
        if abs(left[pivot][pivot]) <= _SINGULAR * largest:
            return None
        for below in range(pivot + 1, size):
            factor = left[below][pivot] / left[pivot][pivot]
            right[below] -= factor * right[pivot]
            left[below] = [value - factor * above for value, above in zip(left[below], left[pivot], strict=True)]
    found = [0.0] * size
    for index in reversed(range(size)):
        known = sum(left[index][later] * found[later] for later in range(index + 1, size))
        found[index] = (right[index] - known) / left[index][index]
    return found

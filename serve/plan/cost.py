"""What it costs an agent to come back: seconds to the first token, by the tier its context is found in. Pure.

A table is fitted to a machine's published times. What nobody has measured is estimated from bytes and bandwidth and
says so; what cannot be estimated is ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from serve.plan.pools import Unit
from serve.sglang_settings import GB

Points = Sequence[tuple[float, float]]
"""(context tokens, seconds)."""

DISK_BYTES_PER_S = 1.5 * GB
"""Assumed for L3: the file backend reads one file after the other (``mem_cache/hicache_storage.py``), so less than the
3 GB/s and more that an NVMe drive can do."""
LINK_BYTES_PER_S = 16.0 * GB
"""Assumed between GPU and RAM where neither a measurement nor a link is known: eight lanes of PCIe 4.0, or four of
5.0."""
ANSWER_S = 0.12
"""Time to the first token when nothing has to be prefilled: the intercept of the published L1 hits."""


class CostTable(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for ``n`` tokens of context; all fitted."""

    source: str
    """The machine that was measured."""
    prefill: tuple[float, float] | None = None
    """``a, b``: a cold prompt takes ``a n + b n^2``."""
    l1: tuple[float, float] | None = None
    """``base, slope``: ``base + slope n``."""
    l2: tuple[float, float] | None = None


class ReturnCost(msgspec.Struct, frozen=True):
    """Of one context from one tier."""

    tier: str
    """``l1``, ``l2``, ``l3`` or ``cold``."""
    seconds: float | None
    basis: str
    """Where the figure is from."""


def fit_prefill(points: Points) -> tuple[float, float]:
    """``a, b`` of ``a n + b n^2`` with the least sum of squared *relative* errors; ``b`` is 0 for a single point.

    The square is the attention over what is already there; on the published 2x7900xtx-am5 the form holds within 1 %.
    """
    if len(points) == 1:
        tokens, seconds = points[0]
        return seconds / tokens, 0.0
    # Divided by the time, each point asks for 1 = a u + b v.
    rows = [(n / t, n * n / t) for n, t in points]
    a, b = _two_unknowns(rows)
    return a, b


def fit_line(points: Points) -> tuple[float, float]:
    """``base, slope`` with the least sum of squared relative errors; slope 0 for a single point."""
    if len(points) == 1:
        return points[0][1], 0.0
    base, slope = _two_unknowns([(1 / t, n / t) for n, t in points])
    return base, slope


def return_costs(
    context_tokens: int, unit: Unit, table: CostTable | None, *, has_l2: bool, has_l3: bool, link_bytes_per_s: float
) -> tuple[ReturnCost, ...]:
    """From the nearest tier to none at all; tiers that the profile lacks are left out."""
    costs = [_l1(context_tokens, table)]
    bytes_each_rank = (unit.kv_bytes + unit.state_bytes_per_token) * context_tokens
    answer = costs[0].seconds or ANSWER_S
    over_link = answer + bytes_each_rank / link_bytes_per_s
    if has_l2:
        if table is not None and table.l2 is not None:
            l2 = ReturnCost("l2", _line(table.l2, context_tokens), f"fitted to {table.source}")
        else:
            l2 = ReturnCost("l2", over_link, f"estimated: {link_bytes_per_s / GB:.0f} GB/s to RAM")
        costs.append(l2)
        over_link = l2.seconds or over_link
    if has_l3:
        seconds = over_link + bytes_each_rank * unit.tp / DISK_BYTES_PER_S
        costs.append(ReturnCost("l3", seconds, f"estimated: {DISK_BYTES_PER_S / GB:.1f} GB/s from disk"))
    cold = None
    if table is not None and table.prefill is not None:
        a, b = table.prefill
        cold = a * context_tokens + b * context_tokens**2
    basis = f"fitted to {table.source}" if table is not None and cold is not None else "not measured"
    return (*costs, ReturnCost("cold", cold, basis))


def _l1(context_tokens: int, table: CostTable | None) -> ReturnCost:
    if table is None or table.l1 is None:
        return ReturnCost("l1", ANSWER_S, "estimated")
    return ReturnCost("l1", _line(table.l1, context_tokens), f"fitted to {table.source}")


def _line(line: tuple[float, float], tokens: int) -> float:
    return line[0] + line[1] * tokens


def _two_unknowns(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of ``1 = x u + y v`` over rows ``(u, v)``: the normal equations."""
    uu = sum(u * u for u, _ in rows)
    uv = sum(u * v for u, v in rows)
    vv = sum(v * v for _, v in rows)
    u1, v1 = sum(u for u, _ in rows), sum(v for _, v in rows)
    determinant = uu * vv - uv * uv
    return (u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant

"""From measured rows to a machine: the coefficients of a cost, how well they tell each row, what was assumed. Pure.

All times to a first token are one system of equations, all decode rows another; both are solved for the least squared
relative errors without negative coefficients. A coefficient that the rows cannot tell is taken from the file's
assumptions, else it is 0, and is listed either way. ``docs/design/twin-cost.md`` has the forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from serve.errors import ServeError
from serve.twin.cost import Cost
from serve.twin.fit_check import held_tokens, passes, residuals
from serve.twin.least_squares import Equation, relative_fit
from serve.twin.machine import Machine
from serve.twin.measured import CostField, HitRow, HitTier, Measured, PrefillRow

DIGITS = 5
"""Significant ones of a coefficient: a file fitted on another processor is the same."""

Coefficients = Mapping[CostField, float]

_DECODE: tuple[CostField, ...] = ("decode_step_s", "decode_request_s", "decode_kv_token_s")


def fit(measured: Measured) -> Machine:
    """Fit it. Raises :class:`~serve.errors.ServeError` where rows are missing that nothing can stand in for."""
    stated: Coefficients = {each.field: each.value for each in measured.assume}
    told = {**_fit_first_token(measured, stated), **_fit_decode(measured, stated)}
    coefficients = {
        field: float(f"{told.get(field, stated.get(field, 0.0)):.{DIGITS}g}") for field in get_args(CostField)
    }
    reasons = {each.field: each.reason for each in measured.assume}
    untold = [
        f"{field} = {value:g}: {reasons.get(field, 'no row tells it, and the file assumes nothing')}"
        for field, value in coefficients.items()
        if field not in told and _matters(field, measured)
    ]
    cost = Cost(**coefficients)
    return Machine(
        name=measured.name,
        summary=measured.summary,
        sources=measured.sources,
        assumed=(*measured.assumed, *untold),
        model=measured.model,
        engine=measured.engine,
        cost=cost,
        residuals=residuals(measured, cost),
    )


def _matters(field: CostField, measured: Measured) -> bool:
    tiers = measured.engine.tiers
    if field.startswith("storage_"):
        return tiers.has_storage
    return tiers.has_host or not field.startswith("host_")


def _fit_first_token(measured: Measured, stated: Coefficients) -> Coefficients:
    prefills = [row for row in measured.prefill if row.fitted]
    hits = [row for row in measured.hit if row.fitted]
    if not prefills:
        raise ServeError(f"{measured.name}: there is no [[prefill]] row to fit. Measure a cold prompt or two.")
    fields: list[CostField] = ["prefill_token_s"]
    if len({row.context for row in prefills}) > 1:
        fields.append("prefill_square_s")
    fields += _told_by_hits(measured, hits)
    chunk = measured.engine.chunked_prefill_tokens
    rows = [(_factors_of_prefill(row, chunk), row.measured_s) for row in prefills]
    rows += [(_factors_of_hit(row, chunk), row.seconds) for row in hits]
    return _solved(fields, rows, stated)


def _told_by_hits(measured: Measured, hits: Sequence[HitRow]) -> list[CostField]:
    """Cold prompts cannot tell what a request costs from what its tokens cost; and a copy is told by the difference to
    a nearer tier only."""
    contexts = {tier: {row.context for row in hits if row.tier is tier} for tier in HitTier}
    device, host, storage = contexts[HitTier.DEVICE], contexts[HitTier.HOST], contexts[HitTier.STORAGE]
    if hits and not device:
        raise ServeError(
            f"{measured.name}: [[hit]] rows of L2 and L3 say nothing without one of tier device to compare them with. "
            "Measure a prompt that is still in L1."
        )
    fields: list[CostField] = []
    if device:
        fields.append("request_s")
    if len(device | host | storage) > 1:
        fields.append("request_token_s")
    if host and (device & host or len(device) > 1):
        fields.append("host_read_token_s")
        if len(host) > 1:
            fields.append("host_read_s")
    if storage and ((device | host) & storage or len(device | host) > 1):
        fields.append("storage_read_token_s")
        if len(storage) > 1:
            fields.append("storage_read_s")
    return fields


def _factors_of_prefill(row: PrefillRow, chunk: int) -> Coefficients:
    return {
        "prefill_token_s": row.context * row.requests,
        "prefill_square_s": row.context**2 * row.requests,
        "prefill_step_s": len(passes(0, row.context, chunk)) * row.requests,
        "request_s": 1,
        "request_token_s": row.context,
    }


def _factors_of_hit(row: HitRow, chunk: int) -> Coefficients:
    found = row.context - row.tail
    factors: dict[CostField, float] = {
        "prefill_token_s": row.tail,
        "prefill_square_s": row.context**2 - found**2,
        "prefill_step_s": len(passes(found, row.context, chunk)),
        "request_s": 1,
        "request_token_s": row.context,
    }
    if row.tier is not HitTier.DEVICE:
        factors |= {"host_read_token_s": found, "host_read_s": 1}
    if row.tier is HitTier.STORAGE:
        factors |= {"storage_read_token_s": found, "storage_read_s": 1}
    return factors


def _fit_decode(measured: Measured, stated: Coefficients) -> Coefficients:
    rows = [row for row in measured.decode if row.fitted]
    if not rows:
        raise ServeError(f"{measured.name}: there is no [[decode]] row to fit. Measure one request that writes.")
    fields: list[CostField] = ["decode_step_s"]
    if len({row.requests for row in rows}) > 1:
        fields.append("decode_request_s")
    if len({held_tokens(row) / row.requests for row in rows}) > 1:
        fields.append("decode_kv_token_s")
    steps: list[tuple[Coefficients, float]] = []
    for row in rows:
        accepted = row.accept_length or measured.engine.accept_length
        factors: Coefficients = dict(zip(_DECODE, (1, row.requests, held_tokens(row)), strict=True))
        steps.append((factors, accepted * row.requests / row.measured_rate))
    return _solved(fields, steps, stated)


def _solved(
    fields: Sequence[CostField], rows: Sequence[tuple[Coefficients, float]], stated: Coefficients
) -> Coefficients:
    """``rows``: how often each coefficient goes into a measured time, and that time. Those not in ``fields`` count
    with what is stated of them."""
    equations = [
        Equation(
            factors=[factors.get(field, 0.0) for field in fields],
            measured=seconds,
            known=sum(factor * stated.get(field, 0.0) for field, factor in factors.items() if field not in fields),
        )
        for factors, seconds in rows
    ]
    return dict(zip(fields, relative_fit(equations, len(fields)), strict=True))

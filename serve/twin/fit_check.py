"""What a cost says of each measured row: the formulas, for an engine with nothing else to do. Pure.

Rows with a history, or with several requests that wait for each other, need the engine model: ``tests/twin`` plays
them.
"""

from __future__ import annotations

from serve.twin.cost import Cost
from serve.twin.machine import Residual
from serve.twin.measured import DecodeRow, GapKind, GapRow, HitRow, HitTier, Measured, PrefillRow

_TIERS = {HitTier.DEVICE: "L1", HitTier.HOST: "L2", HitTier.STORAGE: "L3"}


def residuals(measured: Measured, cost: Cost) -> tuple[Residual, ...]:
    """Of all rows with a figure, whether they were fitted or not, in the file's order of kinds."""
    chunk = measured.engine.chunked_prefill_tokens
    found = [_residual(_prefill_name(row), row.measured_s, _prefill_s(row, cost, chunk)) for row in measured.prefill]
    found += [_residual(_hit_name(row), row.seconds, _hit_s(row, cost, chunk)) for row in measured.hit]
    found += [_residual(_decode_name(row), row.measured_rate, _rate(row, cost, measured)) for row in measured.decode]
    found += [_residual(_gap_name(row), row.seconds, _gap_s(row, cost, chunk)) for row in measured.gap]
    return tuple(found)


def passes(start: int, stop: int, chunk: int) -> list[tuple[int, int]]:
    """Forward passes of a prefill: where each begins, and its tokens."""
    return [(at, min(chunk, stop - at)) for at in range(start, stop, chunk)]


def held_tokens(row: DecodeRow) -> int:
    """KV of all its requests, half way through what they write."""
    return row.requests * (row.context + row.output // 2)


def _prefill_s(row: PrefillRow, cost: Cost, chunk: int) -> float:
    one = sum(cost.prefill_s(*each) for each in passes(0, row.context, chunk))
    return cost.arrival_s(row.context) + row.requests * one


def _hit_s(row: HitRow, cost: Cost, chunk: int) -> float:
    found = row.context - row.tail
    seconds = cost.arrival_s(row.context) + sum(cost.prefill_s(*each) for each in passes(found, row.context, chunk))
    if row.tier is HitTier.STORAGE:
        seconds += cost.storage_read_time(found)
    if row.tier is not HitTier.DEVICE:
        seconds += cost.host_read_time(found)
    return seconds


def _rate(row: DecodeRow, cost: Cost, measured: Measured) -> float:
    accepted = row.accept_length or measured.engine.accept_length
    return accepted * row.requests / cost.decode_s(row.requests, held_tokens(row))


def _gap_s(row: GapRow, cost: Cost, chunk: int) -> float:
    each = [cost.prefill_s(*one) for one in passes(0, row.context, chunk)]
    if row.kind is GapKind.PLAIN:
        return sum(each)
    return max(each) + (cost.decode_s(1, 0) if row.kind is GapKind.INTERVAL else cost.decode_request_s)


def _residual(what: str, measured: float, twin: float) -> Residual:
    return Residual(what=what, measured=_short(measured), twin=_short(twin))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _prefill_name(row: PrefillRow) -> str:
    many = f"{row.requests} x " if row.requests > 1 else ""
    return row.name or f"cold, {many}{row.context:,}, s"


def _hit_name(row: HitRow) -> str:
    return row.name or f"{_TIERS[row.tier]} hit, {row.context:,}, s"


def _decode_name(row: DecodeRow) -> str:
    return row.name or f"decode, {row.requests} x {row.context:,}, tokens/s"


def _gap_name(row: GapRow) -> str:
    return row.name or f"gap, {row.kind}, {row.context:,}, s"

"""The field's tables, measured anew by ``governor bench`` on the twins of the machines that they were made on.

``python -m tests.twin.bench_rows`` prints each row: what was published, what the bench found, what is between them;
``--write`` puts them into the page.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from governor.measure import Result
from governor.measure.options import Options
from governor.measure.result import Metric
from serve.twin.measured import DecodeRow, HitRow, HitTier, PrefillRow, shipped_measured
from tests.measuring import found, machine_named, measured_on_twin

TP2, EPYC = "rx7900xtx-tp2", "rx7900xtx-epyc"
PAGE = Path(__file__).parents[2] / "docs" / "design" / "bench.md"
BEGIN, END = "<!-- rows -->", "<!-- /rows -->"
_TIER_CASES = {HitTier.DEVICE: "L1", HitTier.HOST: "L2", HitTier.STORAGE: "L3"}
_NO_HICACHE = {"host_tokens": 0, "host_slots": 0, "storage_tokens": 0}
_EVICTION = "return after eviction, 64K, no HiCache, s"
_SHORTEST = 64
"""A decode at depth 0 needs a prompt all the same."""


class Row(NamedTuple):
    machine: str
    what: str
    measured: float
    found: float

    @property
    def error(self) -> float:
        return self.found / self.measured - 1


def rows() -> list[Row]:
    """All rows of both machines that a suite makes as they were made."""
    return [*_first_tokens(TP2), *_decodes(TP2), _eviction(), *_first_tokens(EPYC), *_decodes(EPYC)]


@cache
def tiers(machine: str) -> Result:
    measured = shipped_measured(machine)
    contexts = {row.context for row in measured.prefill if _is_plain(row)} | {row.context for row in _hits(machine)}
    return measured_on_twin(machine_named(machine), "tiers", Options(contexts=tuple(sorted(contexts))))


@cache
def at_once(machine: str, context: int, output: int, requests: tuple[int, ...]) -> Result:
    options = Options(contexts=(context,), output_tokens=output, requests=requests)
    return measured_on_twin(machine_named(machine), "concurrency", options)


@cache
def depths(machine: str, contexts: tuple[int, ...], output: int) -> Result:
    return measured_on_twin(machine_named(machine), "decode", Options(contexts=contexts, output_tokens=output))


def _is_plain(row: PrefillRow) -> bool:
    """Needs no history of its own."""
    return row.requests == 1 and not row.name


def _hits(machine: str) -> list[HitRow]:
    return [row for row in shipped_measured(machine).hit if not row.name]


def _first_tokens(machine: str) -> list[Row]:
    made = []
    for row in shipped_measured(machine).prefill:
        if _is_plain(row):
            ttft = found(tiers(machine), "cold", Metric.TTFT_S, row.context).median
            made.append(Row(machine, f"cold, {row.context:,}, s", row.measured_s, ttft))
            rate = found(tiers(machine), "cold", Metric.PREFILL_RATE, row.context).median
            made.append(Row(machine, f"prefill at {row.context:,}, tokens/s", row.context / row.measured_s, rate))
        elif row.requests > 1:
            cold = at_once(machine, row.context, 64, (row.requests,))
            last = found(cold, "cold", Metric.TTFT_MAX_S, row.context, row.requests).median
            made.append(Row(machine, f"cold, {row.requests} x {row.context:,} at once, s", row.measured_s, last))
    for hit in _hits(machine):
        name = _TIER_CASES[hit.tier]
        ttft = found(tiers(machine), name, Metric.TTFT_S, hit.context).median
        made.append(Row(machine, f"{name}, {hit.context:,}, s", hit.seconds, ttft))
    return made


def _decodes(machine: str) -> list[Row]:
    plain = [row for row in shipped_measured(machine).decode if row.requests == 1]
    contexts = tuple(max(_SHORTEST, row.context) for row in plain)
    output = max(row.output for row in plain)
    made = []
    for row in plain:
        rate = found(depths(machine, contexts, output), "decode", Metric.DECODE_RATE, max(_SHORTEST, row.context))
        made.append(Row(machine, f"decode, 1 x {row.context:,}, tokens/s", row.measured_rate, rate.median))
    made += [_decode_at_once(machine, row) for row in shipped_measured(machine).decode if row.requests > 1]
    return made


def _decode_at_once(machine: str, row: DecodeRow) -> Row:
    result = at_once(machine, row.context, row.output, (row.requests,))
    rate = found(result, "decode", Metric.DECODE_RATE, row.context, row.requests).median
    return Row(machine, f"decode, {row.requests} x {row.context:,}, tokens/s", row.measured_rate, rate)


@cache
def without_hicache() -> Result:
    machine = machine_named(TP2, tiers=_NO_HICACHE)
    return measured_on_twin(machine, "tiers", Options(contexts=(65_536,)))


def _eviction() -> Row:
    [row] = [row for row in shipped_measured(TP2).prefill if row.name == _EVICTION]
    again = found(without_hicache(), "return after eviction", Metric.TTFT_S).median
    return Row(TP2, _EVICTION, row.measured_s, again)


def table() -> str:
    lines = ["| machine | row | published | bench on the twin | error |", "|---|---|---:|---:|---:|"]
    for row in rows():
        lines.append(f"| {row.machine} | {row.what} | {row.measured:.4g} | {row.found:.4g} | {row.error:+.1%} |")
    return "\n".join(lines) + "\n"


def in_page(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(in_page(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(table())

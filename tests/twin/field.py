"""Plays the field's measurements on the engine model: the history that each needs, and what the twin then does.

``python -m tests.twin.field`` prints them all beside what was measured; ``--write`` puts them into the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from serve.twin.engine import TwinEngine
from serve.twin.engine_model import (
    Admitted,
    Ask,
    Cached,
    Ended,
    EndReason,
    EngineEvent,
    EngineSettings,
    Retracted,
    Wrote,
)
from serve.twin.machine import Machine, Residual, load_machine
from serve.twin.measured import (
    DecodeRow,
    GapKind,
    GapRow,
    HitRow,
    HitTier,
    PrefillRow,
    TogetherRow,
    shipped_measured,
)
from serve.twin.tiers_key import Key

MACHINES = ("rx7900xtx-tp2", "rx7900xtx-epyc")
PAGE = Path(__file__).parents[2] / "docs" / "design" / "twin-cost.md"
BEGIN, END = "<!-- field -->", "<!-- /field -->"
WINDOW = 262_144
"""The model's own. The longest prompts that were measured leave no room for an answer in the machines' windows."""
FLOOD_TOKENS = 65_536
"""Of one prompt of a flood."""
FINE_S = 0.01
"""A stream is looked at so often."""


class Answer(NamedTuple):
    ttft_s: float
    cached: Cached


class Bench:
    """One engine with nothing in it, and who asks it."""

    def __init__(self, machine: Machine, settings: EngineSettings | None = None) -> None:
        self.engine = TwinEngine(replace(settings or machine.engine, context_tokens=WINDOW), machine.cost)
        self._sources = 0

    def text(self, tokens: int) -> Key:
        """What nobody has said before."""
        self._sources += 1
        return Key([(self._sources, 0, tokens)])

    def submit(self, prompt: Key, writes: int = 1, at: float | None = None) -> str:
        output = self.text(writes)
        rid = f"{self._sources:08}"
        ask = Ask(rid=rid, prompt=prompt, output=output, writes_tokens=writes, max_new_tokens=writes)
        self.engine.submit(self.engine.now if at is None else at, ask)
        return rid

    def until_idle(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while (at := self.engine.next_at()) is not None:
            events += self.engine.run(at)
        self.engine.tiers.check_integrity()
        return events

    def ask(self, prompt: Key, writes: int = 1) -> Answer:
        """Alone, to its end."""
        began = self.engine.now
        rid = self.submit(prompt, writes)
        events = self.until_idle()
        ended = one_end(events, rid)
        return Answer(first_token(events, rid) - began, ended.cached)

    def flood(self, total: int, each: int = FLOOD_TOKENS) -> None:
        """Prompts of others, one after the other."""
        for start in range(0, total, each):
            self.ask(self.text(min(each, total - start)))


def first_token(events: list[EngineEvent], rid: str) -> float:
    return next(event.at for event in events if isinstance(event, Wrote) and event.rid == rid)


def one_end(events: list[EngineEvent], rid: str) -> Ended:
    [ended] = [event for event in events if isinstance(event, Ended) and event.rid == rid]
    assert ended.reason in (EndReason.STOP, EndReason.LENGTH), ended
    return ended


# Times to the first token


def cold_s(machine: Machine, row: PrefillRow) -> float:
    bench = Bench(machine)
    rids = [bench.submit(bench.text(row.context)) for _ in range(row.requests)]
    events = bench.until_idle()
    assert all(one_end(events, rid).cached == Cached() for rid in rids)
    return max(first_token(events, rid) for rid in rids)


def evicted_without_host_s(machine: Machine, row: PrefillRow) -> float:
    """Load A, flood the pool, ask A again, on an engine without L2."""
    alone = replace(machine.engine.tiers, host_tokens=0, host_slots=0, storage_tokens=0)
    bench = Bench(machine, replace(machine.engine, tiers=alone))
    prompt = bench.text(row.context)
    bench.ask(prompt)
    bench.flood(machine.engine.tiers.device_tokens)
    again = bench.ask(prompt)
    assert again.cached == Cached()
    return again.ttft_s


def repeated_s(machine: Machine, row: PrefillRow) -> float:
    """The states of 16 other conversations push this one's out of L1 and L2; KV would fit both many times over."""
    bench = Bench(machine)
    prompt = bench.text(row.context)
    bench.ask(prompt)
    bench.flood(16 * row.context, each=row.context)
    again = bench.ask(prompt)
    assert again.cached == Cached(), again
    return again.ttft_s


def hit_s(machine: Machine, row: HitRow) -> float:
    """A turn, then (for L2) a flood of L1, as large as L2 can hold beside it, then the next turn: the same and ``tail``
    new tokens."""
    bench = Bench(machine)
    before = bench.text(row.context - row.tail)
    bench.ask(before)
    if row.tier is HitTier.HOST:
        tiers = machine.engine.tiers
        bench.flood(min(tiers.device_tokens, tiers.host_tokens - row.context))
    answer = bench.ask(before + bench.text(row.tail))
    assert answer.cached.tokens == row.context - row.tail, answer
    assert (answer.cached.host > 0) == (row.tier is HitTier.HOST), answer
    return answer.ttft_s


def continued_s(machine: Machine, row: HitRow) -> float:
    """Six other conversations as long as this one are enough: the machine has 20 states in L1, 4 for each, and what
    loses its last state goes to L2 with it."""
    bench = Bench(machine)
    before = bench.text(row.context - row.tail)
    bench.ask(before)
    bench.flood(6 * row.context, each=row.context)
    answer = bench.ask(before + bench.text(row.tail))
    assert answer.cached.tokens == row.context - row.tail, answer
    assert answer.cached.host > 0, answer
    return answer.ttft_s


def diverged_s(machine: Machine, row: HitRow) -> float:
    """Conversations begin with the same 1,000 tokens. The second one leaves a state at 960, where it parts from the
    first; the third one's lie a chunk apart from there: 3,008, 5,056, ... Its next turn differs from token 4,500 on."""
    bench = Bench(machine)
    beginning = bench.text(1_000)
    for _ in range(2):
        bench.ask(beginning + bench.text(200))
    talk = beginning + bench.text(row.context - 1_000)
    bench.ask(talk)
    answer = bench.ask(talk.cut(0, 4_500) + bench.text(row.context - 4_500))
    assert answer.cached == Cached(device=row.context - row.tail), answer
    return answer.ttft_s


# Writing


def decode_rate(machine: Machine, row: DecodeRow) -> float:
    """From when the last has its first token to when the first has its last."""
    bench = Bench(machine)
    rids = [bench.submit(bench.text(max(1, row.context)), row.output) for _ in range(row.requests)]
    events = bench.until_idle()
    start = max(first_token(events, rid) for rid in rids)
    end = min(event.at for event in events if isinstance(event, Ended))
    written = sum(event.stop - event.start for event in events if isinstance(event, Wrote) and start < event.at <= end)
    return written / (end - start)


def gap_s(machine: Machine, row: GapRow) -> float:
    """The longest silence of a stream while another prompt is prefilled."""
    settings = replace(
        machine.engine,
        mixed_chunk=row.kind is GapKind.MIXED,
        prefill_decode_interval=1 if row.kind is GapKind.INTERVAL else None,
    )
    bench = Bench(machine, settings)
    stream = bench.submit(bench.text(64), writes=8_000)
    bench.engine.run(2.0)
    other = bench.submit(bench.text(row.context))
    spoke, ended_at, longest = bench.engine.now, inf, 0.0
    while spoke <= ended_at:
        for event in bench.engine.run(bench.engine.now + FINE_S):
            if isinstance(event, Wrote) and event.rid == stream:
                longest = max(longest, event.at - spoke)
                spoke = event.at
            elif isinstance(event, Ended) and event.rid == other:
                ended_at = event.at
    return longest


def fits(machine: Machine, row: TogetherRow) -> bool:
    """All write at once before one of them ends, and nobody is pushed out for it."""
    bench = Bench(machine)
    for _ in range(row.requests):
        bench.submit(bench.text(row.context), row.output)
    events = bench.until_idle()
    assert not any(isinstance(event, Retracted) for event in events)
    first_end = min(event.at for event in events if isinstance(event, Ended))
    admitted = [event.at for event in events if isinstance(event, Admitted)]
    assert len(admitted) == row.requests
    return max(admitted) < first_end


# All of them

_PREFILL_HISTORIES: dict[str, Callable[[Machine, PrefillRow], float]] = {
    "return after eviction, 64K, no HiCache, s": evicted_without_host_s,
    "identical repeat, 7,600, s": repeated_s,
}
_HIT_HISTORIES: dict[str, Callable[[Machine, HitRow], float]] = {
    "template divergence, 7,600, s": diverged_s,
    "continuation from L2, 7,600, s": continued_s,
}


class Play(NamedTuple):
    """A row, and how the twin is asked for it."""

    machine: str
    what: str
    measured: float
    ask: Callable[[], float]

    def residual(self) -> Residual:
        return Residual(what=self.what, measured=self.measured, twin=self.ask())


def plays(name: str) -> list[Play]:
    """Of all rows of a machine that have a figure; named as in its residuals."""
    machine, rows = load_machine(name), shipped_measured(name)
    asked: list[tuple[float, Callable[[], float]]] = []
    asked += [(row.measured_s, partial(_PREFILL_HISTORIES.get(row.name, cold_s), machine, row)) for row in rows.prefill]
    asked += [(row.seconds, partial(_HIT_HISTORIES.get(row.name, hit_s), machine, row)) for row in rows.hit]
    asked += [(row.measured_rate, partial(decode_rate, machine, row)) for row in rows.decode]
    asked += [(row.seconds, partial(gap_s, machine, row)) for row in rows.gap]
    return [
        Play(name, residual.what, measured, ask)
        for residual, (measured, ask) in zip(machine.residuals, asked, strict=True)
    ]


def tables() -> str:
    """As the page about costs has them."""
    lines: list[str] = []
    for name in MACHINES:
        machine = load_machine(name)
        lines += [f"`{name}`", "", "| row | measured | twin | error |", "|---|---|---|---|"]
        for play in plays(name):
            found = play.residual()
            lines.append(f"| {found.what} | {found.measured:.4g} | {found.twin:.4g} | {found.error:+.1%} |")
        for row in shipped_measured(name).together:
            said = ["at once" if fits_so else "one waits" for fits_so in (row.fits, fits(machine, row))]
            lines.append(f"| {row.requests} x {row.context:,} write | {said[0]} | {said[1]} | |")
        lines.append("")
    return "\n".join(lines)


def in_page(page: str) -> str:
    """The page with the tables of today."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(in_page(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(tables())

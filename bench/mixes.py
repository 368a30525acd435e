"""``python -m bench.mixes``: agents whose contexts together are twice and four times L1, under the rules of
:mod:`bench.rules`, on the twin.

Service is what an agent has got of its demand, in seconds of the engine in its fullest batch; all agents want the same.
Jain's index of it, ``(Σ x)² / (n Σ x²)``, is taken at the moment at which the first agent has got all it wanted: later
on the others have the engine to themselves.

The clairvoyant bound knows all that will be asked, computes nothing twice and never waits for a copy. All prompts' new
tokens take their prefill; all answers take their decode steps, of which one holds at most as many requests as may run,
and at most L1's tokens of their contexts; no session is faster than alone. The longest of these is the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import track

from bench.mix_traces import DEMAND_S, SHARED, Mix, MixTrace, mix_trace
from bench.report import Sheet, figure, markdown, print_sheets, write_json
from bench.rules import MACHINE, Rule, played
from governor.simulate.report import percentile
from governor.simulate.result import GOOD_ENDS, Result, TurnRow
from governor.types import PromptShape
from serve.twin.machine import Machine, load_machine

MIXES: Final = tuple(Mix(agents, factor) for factor in (2.0, 4.0) for agents in (4, 8, 32))
RATIO_GOAL: Final = 1.05
JAIN_GOAL: Final = 0.95

app = typer.Typer(add_completion=False)


class MixRun(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on one mix with one seed."""

    seed: int
    prefilled_per_new: float
    """Prompt tokens computed for each that was new."""
    jain: float
    makespan_s: float
    bound_s: float
    ttft_p50_s: float
    """Of continuations; a conversation's first prompt takes its own prefill."""
    ttft_p99_s: float
    ttft_max_s: float
    """Of all turns."""
    pauses: int

    @property
    def of_bound(self) -> float:
        """Throughput as part of the bound's."""
        return self.bound_s / self.makespan_s


class MixRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on one mix; ``None``: the bound."""

    mix: Mix
    rule: Rule | None
    runs: list[MixRun]


def measured(mixed: MixTrace, machine: Machine, result: Result, seed: int) -> MixRun:
    """One run's figures. Raises ``ValueError`` if it has not done all the work."""
    rows = result.turns
    asked = sum(len(turns) for turns in mixed.demand.values())
    if len(rows) != asked or any(row.end not in GOOD_ENDS for row in rows):
        raise ValueError(f"{len(rows)} turns of {asked} were played, some without a good end")
    new = sum(row.new_tokens for row in rows)
    ttfts = [(row.shape, row.ttft_s) for row in rows if row.ttft_s is not None]
    going_on = [ttft_s for shape, ttft_s in ttfts if shape is PromptShape.CONTINUATION]
    return MixRun(
        seed=seed,
        prefilled_per_new=(new + sum(row.reprefilled_tokens for row in rows)) / new,
        jain=jain(services(mixed, machine, rows)),
        makespan_s=result.ended_s,
        bound_s=bound_s(mixed, machine),
        ttft_p50_s=percentile(going_on, 50) or 0.0,
        ttft_p99_s=percentile(going_on, 99) or 0.0,
        ttft_max_s=max(ttft_s for _, ttft_s in ttfts),
        pauses=sum(max(0, len(row.slices) - 1) for row in rows),
    )


def jain(values: Iterable[float]) -> float:
    """1 if all are equal, 1/n if one has all."""
    shares = list(values)
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def services(mixed: MixTrace, machine: Machine, rows: Sequence[TurnRow]) -> list[float]:
    """Of each agent, when the first one has got all."""
    agents = sorted({row.agent for row in rows})
    until = min(max(row.ended_s for row in rows if row.agent == agent) for agent in agents)
    got = dict.fromkeys(agents, 0.0)
    cost, engine = machine.cost, machine.engine
    for session, asked in mixed.demand.items():
        mine = [row for row in rows if f"{row.agent}/{row.session}" == session]
        for row, (_, wants) in zip(mine, asked, strict=True):
            if row.first_token_s is None or row.first_token_s > until:
                continue
            decoding_s = row.ended_s - row.first_token_s
            part = min(1.0, (until - row.first_token_s) / decoding_s) if decoding_s else 1.0
            got[row.agent] += wants.prefill_s(cost)
            got[row.agent] += part * wants.decode_s(cost, engine, engine.max_running_requests)
    return list(got.values())


def bound_s(mixed: MixTrace, machine: Machine) -> float:
    """No rule is done sooner."""
    cost, engine = machine.cost, machine.engine
    wants = [want for asked in mixed.demand.values() for _, want in asked]
    l1_tokens = engine.tiers.page_floor(engine.tiers.device_tokens)
    steps = max(
        sum(want.steps(engine) for want in wants) / engine.max_running_requests,
        sum(want.steps(engine) * (want.context_tokens - SHARED.tokens) for want in wants) / l1_tokens,
    )
    everybodys = sum(want.prefill_s(cost) + want.requests_s(cost, engine) for want in wants)
    longest = max(
        sum(turn.after_s + want.first_token_s(cost) + want.decode_s(cost, engine, 1) for turn, want in asked)
        for asked in mixed.demand.values()
    )
    return max(everybodys + steps * cost.decode_step_s, longest)


def bound(mixed: MixTrace, machine: Machine, seed: int) -> MixRun:
    """As a run: every first token as on an idle engine that has all it can have."""
    seconds = bound_s(mixed, machine)
    ttfts = [(turn.shape, want.first_token_s(machine.cost)) for asked in mixed.demand.values() for turn, want in asked]
    going_on = [ttft_s for shape, ttft_s in ttfts if shape is PromptShape.CONTINUATION]
    return MixRun(
        seed=seed,
        prefilled_per_new=1.0,
        jain=1.0,
        makespan_s=seconds,
        bound_s=seconds,
        ttft_p50_s=percentile(going_on, 50) or 0.0,
        ttft_p99_s=percentile(going_on, 99) or 0.0,
        ttft_max_s=max(ttft_s for _, ttft_s in ttfts),
        pauses=0,
    )


def run_mix(mix: Mix, machine: Machine, seeds: Sequence[int], demand_s: float = DEMAND_S) -> list[MixRow]:
    """All rules, and the bound."""
    traces = [(seed, mix_trace(mix, machine, seed, demand_s)) for seed in seeds]
    rows = []
    for rule in Rule:
        runs = [measured(mixed, machine, played(rule, mixed.trace, machine, seed), seed) for seed, mixed in traces]
        rows.append(MixRow(mix=mix, rule=rule, runs=runs))
    rows.append(MixRow(mix=mix, rule=None, runs=[bound(mixed, machine, seed) for seed, mixed in traces]))
    return rows


def with_tiers(machine: Machine, tiers: int) -> Machine:
    """The machine with L1 only, with L2, or with L3 too."""
    settings = machine.engine.tiers
    if tiers < 3:
        settings = msgspec.structs.replace(settings, storage_tokens=0)
    if tiers < 2:
        settings = msgspec.structs.replace(settings, host_tokens=0, host_slots=0)
    return msgspec.structs.replace(machine, engine=msgspec.structs.replace(machine.engine, tiers=settings))


def sheets(rows: Sequence[MixRow]) -> list[Sheet]:
    """The table."""
    return [
        Sheet(
            title="Mean (least to most) over the seeds",
            columns=(
                "agents, over L1",
                "rule",
                "prefilled / new",
                "Jain",
                "of the bound's throughput",
                "first token p50, s",
                "p99, s",
                "longest of all turns, s",
                "pauses",
            ),
            rows=[_cells(row) for row in rows],
            note="first token: of continuations; a conversation's first prompt takes its own prefill, up to 150 s.",
        )
    ]


def _cells(row: MixRow) -> tuple[str, ...]:
    return (
        f"{row.mix.agents}, {row.mix.factor:g}x",
        "clairvoyant bound" if row.rule is None else row.rule.value,
        _spread(row, lambda run: run.prefilled_per_new, 2),
        _spread(row, lambda run: run.jain, 2),
        _spread(row, lambda run: run.of_bound, 2),
        _spread(row, lambda run: run.ttft_p50_s, 1),
        _spread(row, lambda run: run.ttft_p99_s, 0),
        _spread(row, lambda run: run.ttft_max_s, 0),
        figure(sum(run.pauses for run in row.runs) / len(row.runs), 0),
    )


def _spread(row: MixRow, read: Callable[[MixRun], float], digits: int) -> str:
    values = [read(run) for run in row.runs]
    mean, low, high = (figure(value, digits) for value in (sum(values) / len(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def goals(rows: Sequence[MixRow]) -> list[str]:
    """Each goal with what became of it."""
    lines = []
    for row in (each for each in rows if each.rule is Rule.GOVERNOR):
        name = f"{row.mix.agents} agents, {row.mix.factor:g}x"
        index = sum(run.jain for run in row.runs) / len(row.runs)
        ratio = sum(run.prefilled_per_new for run in row.runs) / len(row.runs)
        lines.append(f"{'met' if index >= JAIN_GOAL else 'MISSED'}: {name}: Jain {JAIN_GOAL}: {index:.3f}")
        if row.mix.factor <= 2:
            is_met = ratio <= RATIO_GOAL
            lines.append(f"{'met' if is_met else 'MISSED'}: {name}: prefilled / new {RATIO_GOAL}: {ratio:.3f}")
    return lines


@app.command()
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 1 on.")] = 5,
    tiers: Annotated[int, typer.Option(min=1, max=3, help="1: L1 only; 2: L2, too; 3: L3, too.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One seed of the first two mixes.")] = False,
) -> None:
    """Play all mixes under all rules. Takes four minutes; the figures are the same on every machine.

    \b
    python -m bench.mixes
    python -m bench.mixes --seeds 1
    """
    machine = with_tiers(load_machine(MACHINE), tiers)
    rows: list[MixRow] = []
    last = 1 if quick else seeds
    for mix in track(MIXES[:2] if quick else MIXES, console=Console(stderr=True), description="mixes"):
        rows += run_mix(mix, machine, range(1, last + 1))
    if json_file is not None:
        write_json(json_file, rows)
    command = f"python -m bench.mixes --tiers {tiers} --seeds {last}"
    origin = f"Virtual time, twin of {MACHINE}, {tiers} tiers, seeds 1 to {last}. `{command}`"
    if as_markdown:
        print(markdown(sheets(rows), origin))
    else:
        print_sheets(sheets(rows), origin, Console())
    for line in goals(rows):
        print(line)


if __name__ == "__main__":
    app()

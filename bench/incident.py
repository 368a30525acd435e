"""``python -m bench.incident``: the incident in which one answer kept three agents waiting for 49 minutes, on the twin
of the very machine: the engine alone, ThunderAgent's rule, the governor; and each agent as if it were the only one.

Nothing is capped, so that all do the same work and only time differs.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from bench.report import Sheet, figure, markdown, print_sheets, write_json
from bench.rules import MACHINE, Rule, played
from governor.simulate.incident import SMALL, incident
from governor.simulate.plot import PlotUnavailable, plot
from governor.simulate.report import percentile
from governor.simulate.result import GOOD_ENDS, Result, TurnRow
from serve.twin.machine import Machine, load_machine
from serve.twin.trace import Trace

STALL_GOAL_S: Final = 60.0
TTFT_GOAL: Final = 10.0
"""Times better, for the small agents."""
THROUGHPUT_GOAL: Final = 0.9
"""Of the ungoverned run's."""
_RULES: Final = (Rule.FIRST_COME, Rule.SHORTEST, Rule.GOVERNOR)
_QUICK: Final = (Rule.FIRST_COME, Rule.GOVERNOR)

app = typer.Typer(add_completion=False)


class AgentRun(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in one run."""

    turns: int
    first_stall_s: float
    """The longest time without a token in its first turn, whose prompt nobody has computed before."""
    later_stall_s: float
    """In all others."""
    ttft_p99_s: float
    ttft_max_s: float
    kept_pace_p99_s: float
    """If it had gone on asking as often as it does alone: one that stands still asks nothing, and a stall of an hour
    would otherwise count as one turn."""
    ended_s: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One rule."""

    agents: dict[str, AgentRun]
    makespan_s: float
    kept_tokens: int
    """Of answers that their clients took."""
    wasted_tokens: int
    """Of answers that their clients gave up."""
    prefilled_per_new: float
    pauses: int
    answers: int
    """That came to their end."""
    answers_whole: int
    """Of those, as long as the model would have written uninterrupted."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, by rule; ``alone``: each agent as if the others were not there."""

    alone: dict[str, AgentRun]
    runs: dict[Rule, Run]

    @property
    def stalls_s(self) -> dict[str, float]:
        """Governed, by what it is: the longest time without a token, where the agent's own prefill would not take more
        than the goal if it were alone."""
        stalls = {}
        for name, agent in self.runs[Rule.GOVERNOR].agents.items():
            if self.alone[name].first_stall_s <= STALL_GOAL_S:
                stalls[f"{name}, first turn"] = agent.first_stall_s
            if self.alone[name].later_stall_s <= STALL_GOAL_S:
                stalls[f"{name}, later"] = agent.later_stall_s
        return stalls

    @property
    def ttft_gain(self) -> float:
        """How many times sooner the small agent's first token comes, p99 at its own pace."""
        before, after = (self.runs[rule].agents[SMALL].kept_pace_p99_s for rule in (Rule.FIRST_COME, Rule.GOVERNOR))
        return before / after

    @property
    def throughput_kept(self) -> float:
        """The same work in this part of the time: above 1 it is done sooner."""
        return self.runs[Rule.FIRST_COME].makespan_s / self.runs[Rule.GOVERNOR].makespan_s


def measured(trace: Trace, machine: Machine, results: Mapping[Rule, Result]) -> Outcome:
    """The figures of the runs."""
    alone: dict[str, AgentRun] = {}
    paces: dict[str, float] = {}
    for agent in trace.agents:
        rows = played(Rule.FIRST_COME, only(trace, agent.name), machine).turns
        paces[agent.name] = statistics.median(_intervals(rows))
        alone[agent.name] = _agent(rows, paces[agent.name])
    return Outcome(alone=alone, runs={rule: _run(result, paces) for rule, result in results.items()})


def only(trace: Trace, agent: str) -> Trace:
    """The trace without the other agents."""
    return msgspec.structs.replace(
        trace,
        agents=tuple(each for each in trace.agents if each.name == agent),
        scripts=tuple(each for each in trace.scripts if each.session.agent == agent),
        generators=tuple(each for each in trace.generators if each.agent == agent),
    )


def _run(result: Result, paces: Mapping[str, float]) -> Run:
    rows = result.turns
    ended = [row for row in rows if row.end in GOOD_ENDS]
    new = sum(row.new_tokens for row in rows)
    return Run(
        agents={name: _agent(result.of(name), pace) for name, pace in paces.items()},
        makespan_s=result.ended_s,
        kept_tokens=sum(row.output_tokens for row in ended),
        wasted_tokens=sum(row.output_tokens for row in rows if row.end not in GOOD_ENDS),
        prefilled_per_new=(new + sum(row.reprefilled_tokens for row in rows)) / new,
        pauses=sum(max(0, len(row.slices) - 1) for row in rows),
        answers=len(ended),
        answers_whole=sum(1 for row in ended if row.output_tokens == row.wanted_tokens == _sliced(row)),
    )


def _sliced(row: TurnRow) -> int:
    """What its stays on the engine have written together."""
    return sum(each.output_tokens for each in row.slices)


def _agent(rows: Sequence[TurnRow], pace_s: float) -> AgentRun:
    ordered = sorted(rows, key=lambda row: row.arrived_s)
    waits = [_first_token(row) for row in rows]
    return AgentRun(
        turns=len(rows),
        first_stall_s=_longest_silence(ordered[:1]),
        later_stall_s=_longest_silence(ordered[1:]),
        ttft_p99_s=percentile(waits, 99) or 0.0,
        ttft_max_s=max(waits, default=0.0),
        kept_pace_p99_s=percentile(at_pace(waits, pace_s), 99) or 0.0,
        ended_s=max((row.ended_s for row in rows), default=0.0),
    )


def _longest_silence(rows: Iterable[TurnRow]) -> float:
    return max((row.longest_silence_s for row in rows), default=0.0)


def _first_token(row: TurnRow) -> float:
    """Seconds; to its end where none came."""
    return (row.ended_s if row.first_token_s is None else row.first_token_s) - row.arrived_s


def at_pace(waits: Iterable[float], pace_s: float) -> Iterator[float]:
    """Each wait, and those of the questions that would have been asked during it, one every ``pace_s`` (the correction
    for coordinated omission of HdrHistogram)."""
    for wait in waits:
        left = wait
        yield left
        while (left := left - pace_s) > 0:
            yield left


def _intervals(rows: Sequence[TurnRow]) -> list[float]:
    arrivals = sorted(row.arrived_s for row in rows)
    return [after - before for before, after in itertools.pairwise(arrivals)]


def sheets(outcome: Outcome) -> list[Sheet]:
    """The tables."""
    rules = list(outcome.runs)
    names = list(outcome.alone)
    stalls = [
        (name, *(f"{figure(a.first_stall_s)} / {figure(a.later_stall_s)}" for a in _of_all(outcome, name)))
        for name in names
    ]
    first = [
        (
            name,
            f"{outcome.alone[name].turns:,}",
            *(f"{figure(a.ttft_p99_s)} / {figure(a.kept_pace_p99_s)}" for a in _of_all(outcome, name)),
        )
        for name in names
    ]
    ends = [(name, *(figure(a.ended_s, 0) for a in _of_all(outcome, name))) for name in names]
    runs = [
        (
            rule.value,
            f"{run.makespan_s:,.0f}",
            f"{run.kept_tokens:,}",
            f"{run.wasted_tokens:,}",
            figure(run.kept_tokens / run.makespan_s),
            figure(run.prefilled_per_new, 2),
            f"{run.pauses:,}",
            f"{run.answers_whole:,} of {run.answers:,}",
        )
        for rule, run in outcome.runs.items()
    ]
    heads = ("alone", *(rule.value for rule in rules))
    return [
        Sheet(
            title="Longest time without a token, s: in the first turn / in all later ones",
            columns=("agent", *heads),
            rows=stalls,
            note="alone: as if the agent were the only one; what is there is its own prefill. First turns are prompts "
            "of 94K, 140K, 22K and 16K tokens that nobody has computed before; a summary's is one of 97K, and its "
            "client hangs up after 120 s.",
        ),
        Sheet(
            title="To the first token, p99, s: of all turns / if it had gone on asking at its own pace",
            columns=("agent", "turns", *heads),
            rows=first,
            note="Who stands still asks nothing, so that a stall of an hour is one turn of many; the second figure "
            "adds the questions that would have been asked meanwhile.",
        ),
        Sheet(title="All of an agent's work done after, s", columns=("agent", *heads), rows=ends),
        Sheet(
            title="The whole",
            columns=(
                "rule",
                "makespan, s",
                "tokens kept",
                "given up",
                "kept / s",
                "prefilled / new",
                "pauses",
                "whole answers",
            ),
            rows=runs,
            note="given up: written to calls that their client had stopped waiting for (the summaries that never came "
            "in time).",
        ),
    ]


def _of_all(outcome: Outcome, name: str) -> list[AgentRun]:
    """One agent: alone, and in each run."""
    return [outcome.alone[name], *(run.agents[name] for run in outcome.runs.values())]


def goals(outcome: Outcome) -> list[str]:
    """Each goal with what became of it."""
    worst = max(outcome.stalls_s.values())
    governed = outcome.runs[Rule.GOVERNOR]
    return [
        _told(
            worst <= STALL_GOAL_S,
            f"nobody stands still for more than {STALL_GOAL_S:.0f} s, but for prefills that alone take longer: "
            f"{worst:.1f} s",
        ),
        _told(
            outcome.ttft_gain >= TTFT_GOAL,
            f"the small agent's p99 {TTFT_GOAL:.0f} times better: {outcome.ttft_gain:.0f}",
        ),
        _told(
            outcome.throughput_kept >= THROUGHPUT_GOAL,
            f"{THROUGHPUT_GOAL:.0%} of the throughput kept: {outcome.throughput_kept:.0%}",
        ),
        _told(governed.answers == governed.answers_whole, "every answer is as long as uninterrupted"),
    ]


def _told(is_met: bool, what: str) -> str:
    return f"{'met' if is_met else 'MISSED'}: {what}"


@app.command()
def main(
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw both runs into this .png, .svg or .pdf.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only the engine alone, and governed.")] = False,
) -> None:
    """Play the incident and say what became of it. Takes half a minute; the figures are the same on every machine.

    \b
    python -m bench.incident
    python -m bench.incident --plot incident.png
    """
    machine, trace = load_machine(MACHINE), incident()
    results = {rule: played(rule, trace, machine) for rule in (_QUICK if quick else _RULES)}
    outcome = measured(trace, machine, results)
    err = Console(stderr=True)
    if plot_file is not None:
        try:
            plot([(f"{rule.value}", results[rule]) for rule in _QUICK], plot_file)
        except PlotUnavailable as error:
            err.print(f"[red]{error}[/]")
            raise typer.Exit(1) from error
    if json_file is not None:
        write_json(json_file, outcome)
    origin = f"Virtual time, twin of {MACHINE}. `python -m bench.incident`"
    if as_markdown:
        print(markdown(sheets(outcome), origin))
    else:
        print_sheets(sheets(outcome), origin, Console())
    for line in goals(outcome):
        print(line)


if __name__ == "__main__":
    app()

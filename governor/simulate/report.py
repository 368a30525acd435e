"""The figures of a run: rows of turns in, one set of figures an agent and one for the whole out. Pure.

A wait is what was waited for a turn; a *stall* is what an agent stood still: from asking, through every retry, to the
first token that came, or the longest silence inside an answer. Unknown is ``None`` and never zero.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from governor.simulate.result import GOOD_ENDS, Result, Sample, TurnEnd, TurnRow, Wait, WaitPlace
from governor.types import AgentName

_REASONS_SHOWN = 3
_FULL = 0.99
_ROUNDING_S = 1e-6


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One time that an agent stood still."""

    at_s: float
    """From when on; inside an answer, where nobody made it wait, from its first token on at the earliest."""
    seconds: float
    turn_id: str
    before_first_token: bool
    """``False``: in the middle of an answer."""
    reason: str
    """The longest wait within, in words; empty where nobody made it wait: the prefill itself took so long."""
    behind: tuple[AgentName, ...] = ()
    """Whose turns ran meanwhile, as seen when that wait began."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Of all turns that the engine took up."""

    prompt: int = 0
    new: int = 0
    """Of the prompts: never computed before by anybody."""
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    reprefilled: int = 0
    """Computed once more, though they had been computed before."""
    output: int = 0

    @property
    def prefilled(self) -> int:
        """All that was computed of prompts."""
        return self.new + self.reprefilled

    @property
    def prefill_ratio(self) -> float | None:
        """Tokens computed for each that was new: 1 is what cannot be had for less."""
        return self.prefilled / self.new if self.new else None


class WaitFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All waits of some turns, by who made them wait and why."""

    governor_s: float = 0.0
    engine_s: float = 0.0
    longest_s: float = 0.0
    turns: int = 0
    """Turns that waited at all."""
    reasons: tuple[tuple[str, float], ...] = ()
    """The reasons that cost most, with their seconds."""


class AgentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in one run."""

    agent: AgentName
    turns: int
    """Requests, retries among them."""
    retries: int
    good: int
    ends: dict[TurnEnd, int]
    ttft_p50_s: float | None
    """Of the turns that got a first token; nearest rank."""
    ttft_p99_s: float | None
    ttft_max_s: float | None
    stall: Stall | None
    """The longest."""
    waits: WaitFigures
    tokens: Tokens
    pauses: int
    """Times that a running turn was stopped by the governor and went on later."""
    retractions: int
    compactions: int
    compactions_in_vain: int
    """Those after which the next prompt was over the threshold again."""
    ended_s: float
    """When its last turn ended."""


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How full the engine was. Shares are of capacity, 0 to 1; of times, of the samples."""

    l1_peak_share: float | None
    """KV that running requests held."""
    l1_full_time_share: float | None
    """Time in which cache and requests together left less than 1 % free."""
    slots_peak_share: float | None
    """States of linear-attention layers that running requests held; ``None``: a dense model."""
    slots_full_time_share: float | None
    """Time in which cache and requests together left less than 1 % of the states free."""
    l2_peak_share: float | None
    running_peak: int
    waiting_peak: int
    """In the engine's queue."""
    held_peak: int
    """At the governor."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run."""

    name: str
    """What told this run from others: a folder of policies, or that there was no governor."""
    trace: str
    machine: str
    governed: bool
    seed: int
    agents: tuple[AgentFigures, ...]
    all: AgentFigures
    """Over all agents; its ``agent`` is ``all``."""
    engine: EngineFigures
    makespan_s: float
    output_per_s: float | None
    """Tokens written in the makespan, by its seconds."""
    prefilled_per_s: float | None


def report(result: Result, name: str) -> Report:
    """The figures of a run, agents by name."""
    agents = sorted({row.agent for row in result.turns})
    everybody = _figures(AgentName("all"), result.turns, result)
    tokens, makespan = everybody.tokens, result.ended_s
    return Report(
        name=name,
        trace=result.trace,
        machine=result.machine,
        governed=result.governed,
        seed=result.seed,
        agents=tuple(_figures(agent, result.of(agent), result) for agent in agents),
        all=everybody,
        engine=_engine(result),
        makespan_s=makespan,
        output_per_s=tokens.output / makespan if makespan else None,
        prefilled_per_s=tokens.prefilled / makespan if makespan else None,
    )


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Nearest rank: the smallest value that at least ``percent`` of them do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def longest_stall(rows: Iterable[TurnRow]) -> Stall | None:
    """The longest time one agent stood still in any of its sessions."""
    worst: TurnRow | None = None
    attempts: dict[tuple[AgentName, str, float], list[TurnRow]] = defaultdict(list)
    for row in rows:
        attempts[row.agent, row.session, row.asked_s].append(row)
        if worst is None or row.longest_silence_s > worst.longest_silence_s:
            worst = row
    return None if worst is None else _stall(worst, attempts[worst.agent, worst.session, worst.asked_s])


def _stall(row: TurnRow, attempts: Sequence[TurnRow]) -> Stall:
    seconds, heard_s = row.longest_silence_s, row.first_token_s
    before_first_token = heard_s is None or seconds <= heard_s - row.asked_s + _ROUNDING_S
    if heard_s is None or before_first_token:
        began_s = row.asked_s
        waits = [wait for attempt in attempts for wait in attempt.waits if wait.at_s < (heard_s or row.ended_s)]
    else:
        began_s = heard_s
        waits = [wait for wait in row.waits if wait.at_s >= heard_s]
    longest = max(waits, key=lambda wait: wait.seconds, default=None)
    return Stall(
        at_s=began_s if before_first_token or longest is None else longest.at_s,
        seconds=seconds,
        turn_id=row.turn_id,
        before_first_token=before_first_token,
        reason="" if longest is None else _reason(longest),
        behind=() if longest is None else longest.behind,
    )


def _reason(wait: Wait) -> str:
    """In words, also where none is given: an engine need not tell."""
    return wait.reason or f"in the {wait.place.value}'s queue"


def _figures(agent: AgentName, rows: Sequence[TurnRow], result: Result) -> AgentFigures:
    first_tokens = [row.ttft_s for row in rows if row.ttft_s is not None]
    whose = {row.agent for row in rows}
    compactions = [row for row in result.compactions if row.agent in whose]
    return AgentFigures(
        agent=agent,
        turns=len(rows),
        retries=sum(1 for row in rows if row.attempt > 1),
        good=sum(1 for row in rows if row.end in GOOD_ENDS),
        ends=dict(Counter(row.end for row in rows)),
        ttft_p50_s=percentile(first_tokens, 50),
        ttft_p99_s=percentile(first_tokens, 99),
        ttft_max_s=max(first_tokens, default=None),
        stall=longest_stall(rows),
        waits=_waits(rows),
        tokens=_tokens(rows),
        pauses=sum(max(0, len(row.slices) - 1) for row in rows),
        retractions=sum(row.retractions for row in rows),
        compactions=len(compactions),
        compactions_in_vain=sum(1 for row in compactions if row.in_vain),
        ended_s=max((row.ended_s for row in rows), default=0.0),
    )


def _waits(rows: Iterable[TurnRow]) -> WaitFigures:
    seconds: dict[WaitPlace, float] = defaultdict(float)
    reasons: dict[str, float] = defaultdict(float)
    longest, turns = 0.0, 0
    for row in rows:
        turns += bool(row.waits)
        for wait in row.waits:
            seconds[wait.place] += wait.seconds
            reasons[_reason(wait)] += wait.seconds
            longest = max(longest, wait.seconds)
    ranked = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    return WaitFigures(
        governor_s=seconds[WaitPlace.GOVERNOR],
        engine_s=seconds[WaitPlace.ENGINE],
        longest_s=longest,
        turns=turns,
        reasons=tuple(ranked[:_REASONS_SHOWN]),
    )


def _tokens(rows: Iterable[TurnRow]) -> Tokens:
    taken = [row for row in rows if row.admitted_s is not None]
    return Tokens(
        prompt=sum(row.prompt_tokens for row in taken),
        new=sum(row.new_tokens for row in taken),
        cached_device=sum(row.cached_device for row in taken),
        cached_host=sum(row.cached_host for row in taken),
        cached_storage=sum(row.cached_storage for row in taken),
        reprefilled=sum(row.reprefilled_tokens for row in taken),
        output=sum(row.output_tokens for row in taken),
    )


def _engine(result: Result) -> EngineFigures:
    samples, capacity = result.samples, result.capacity
    return EngineFigures(
        l1_peak_share=_peak((sample.l1_used_tokens for sample in samples), capacity.l1_tokens),
        l1_full_time_share=_time_full(samples, [sample.l1_tokens for sample in samples], capacity.l1_tokens),
        slots_peak_share=_peak((sample.l1_used_slots for sample in samples), capacity.l1_slots),
        slots_full_time_share=_time_full(samples, [sample.l1_slots for sample in samples], capacity.l1_slots),
        l2_peak_share=_peak((sample.l2_tokens for sample in samples), capacity.l2_tokens),
        running_peak=max((sample.running for sample in samples), default=0),
        waiting_peak=max((sample.waiting for sample in samples), default=0),
        held_peak=max((sample.held for sample in samples), default=0),
    )


def _peak(values: Iterable[int], capacity: int) -> float | None:
    highest = max(values, default=None)
    return None if highest is None or not capacity else highest / capacity


def _time_full(samples: Sequence[Sample], values: Sequence[int], capacity: int) -> float | None:
    """Share of the time between the first sample and the last, a sample holding until the next."""
    if len(samples) < 2 or not capacity:
        return None
    span = samples[-1].at_s - samples[0].at_s
    full = sum(
        after.at_s - sample.at_s
        for sample, after, value in zip(samples, samples[1:], values, strict=False)
        if value >= capacity * _FULL
    )
    return full / span if span else None

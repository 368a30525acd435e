"""*soak*: four agents that work on and on, and what is left of them: memory that grows, KV that nobody gives back,
answers that get slower.

Two minutes show that it runs; a leak of a megabyte a turn needs an hour to be told from noise (``--minutes 60``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import linear_regression, median

from governor.measure.options import Options
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.agent import Agent, Turn, prefilled_per_new

AGENTS = 4
FIRST_TOKENS, GROWTH_TOKENS, OUTPUT_TOKENS = 2048, 256, 64
_LARGEST_SHARE = 0.2
"""Of L1 or the window: then another conversation begins."""
_SAMPLE_S = 5.0
_LEAST_SAMPLES = 6
_LEAST_TURNS = 9
_IDLE_S = 3.0
"""After the last turn; an idle engine tells its load once a second."""


def steps(session: Session, options: Options) -> list[Step]:
    return [Step(f"soak, {options.minutes:g} min", options.minutes * 60, partial(_soak, session, options))]


async def _soak(session: Session, options: Options) -> None:
    target, facts = session.target, session.facts
    pool = min(facts.window_tokens, facts.device_tokens or facts.window_tokens)
    largest = max(128, round(pool * _LARGEST_SHARE))
    first = min(FIRST_TOKENS, largest // 2)
    ends_at = target.now() + options.minutes * 60
    agents = [Agent(session, f"soak {at}", first) for at in range(AGENTS)]
    turns: list[Turn] = []

    async def work(agent: Agent) -> None:
        while target.now() < ends_at:
            turn = await agent.turn(OUTPUT_TOKENS, min(GROWTH_TOKENS, first))
            if turn is None:
                await asyncio.sleep(_IDLE_S)
                continue
            turns.append(turn)
            if agent.context_tokens > largest:
                agent.begin_anew()

    samples: list[tuple[float, float]] = []
    watching = asyncio.create_task(_watch(session, options.pids, samples))
    try:
        await asyncio.gather(*(work(agent) for agent in agents))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await asyncio.sleep(_IDLE_S)
    case = Case(name="soak", context_tokens=first, requests=AGENTS, output_tokens=OUTPUT_TOKENS)
    _tell_turns(session, case, agents, turns)
    await _tell_left(session, case)
    _tell_memory(session, case, options.pids, samples)


def _tell_turns(session: Session, case: Case, agents: list[Agent], turns: list[Turn]) -> None:
    if turns:
        session.add(case, Metric.TTFT_S, median(turn.answer.ttft_s for turn in turns))
        session.add(case, Metric.STALL_S, max(turn.stall_s for turn in turns))
    ratio = prefilled_per_new(agents)
    if ratio is not None:
        session.add(case, Metric.PREFILLED_PER_NEW, ratio)
    if len(turns) < _LEAST_TURNS:
        session.skip("drift", f"{len(turns)} turns are too few to tell")
        return
    third = len(turns) // 3
    early, late = (median(turn.answer.ttft_s for turn in some) for some in (turns[:third], turns[-third:]))
    session.add(case, Metric.DRIFT_RATIO, late / early)
    session.note(f"{len(turns)} turns were asked.")


async def _tell_left(session: Session, case: Case) -> None:
    """What running requests hold when none runs."""
    load = await session.target.load()
    if load.running is None or load.kv_used_tokens is None:
        session.skip("KV that is left", "the engine does not tell its load")
    elif load.running or load.queued:
        session.throw(case, f"{load.running} requests still run: their KV cannot be told from what is left")
    else:
        session.add(case, Metric.KV_LEFT_TOKENS, load.kv_used_tokens)


def _tell_memory(session: Session, case: Case, pids: Sequence[int], samples: Sequence[tuple[float, float]]) -> None:
    if not pids:
        session.skip("memory", "no process to watch was given (--pid)")
        return
    growth = growth_mib_per_h(samples)
    if growth is None:
        session.skip("memory", f"{len(samples)} samples are too few to tell growth; soak longer")
        return
    session.add(case, Metric.MEMORY_MIB_PER_H, growth)


def growth_mib_per_h(samples: Sequence[tuple[float, float]]) -> float | None:
    """Of seconds and MiB, over the second half: in the first, pools are touched for the first time. ``None`` of too
    few."""
    settled = samples[len(samples) // 2 :]
    if len(settled) < _LEAST_SAMPLES:
        return None
    slope, _ = linear_regression([at for at, _ in settled], [mib for _, mib in settled])
    return slope * 3600


async def _watch(session: Session, pids: Sequence[int], samples: list[tuple[float, float]]) -> None:
    while pids:
        samples.append((session.target.now(), sum(map(resident_mib, pids))))
        await asyncio.sleep(_SAMPLE_S)


def resident_mib(pid: int) -> float:
    """Resident memory now; 0 of a process that is not there. Linux only."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0

"""*incident*: a hog that writes a long answer beside three small agents with short turns, in small.

What was published took 49 minutes of standing still. Here the hog's context and answer are a share of what L1 holds, so
that the same thing is asked of every engine: how long does a small agent get nothing? Point ``--engine`` at a governor
to measure what it makes of it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from statistics import median

from governor.measure.options import Options
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.agent import Agent, prefilled_per_new
from governor.measure.suites.weights import decode_weight, prefill_weight

SMALL_AGENTS = 3
TURNS = 6
HOG_SHARE = 0.5
"""Of L1: its context."""
SMALL_SHARE = 0.2
"""Of L1: each of the others', so that all together do not fit."""
OUTPUT_SHARE = 0.1
"""Of L1: what the hog writes."""
GROWTH_TOKENS = 100
SMALL_OUTPUT = 30
_UNTOLD_POOL = 32_768
_MOST_WINDOW = 0.8


def steps(session: Session, options: Options) -> list[Step]:
    facts = session.facts
    pool = facts.device_tokens or (facts.slots or 1) * facts.window_tokens or _UNTOLD_POOL
    most = round(facts.window_tokens * _MOST_WINDOW)
    hog, small = min(most, round(pool * HOG_SHARE)), min(most, round(pool * SMALL_SHARE))
    written = options.output_tokens or min(facts.window_tokens - hog - 1, round(pool * OUTPUT_SHARE))
    weight = prefill_weight(hog) + SMALL_AGENTS * prefill_weight(small) + decode_weight(written)
    found = []
    for number in range(session.repeats):
        found.append(Step("incident", weight, partial(_play, session, number, hog, small, written)))
    return found


async def _play(session: Session, number: int, hog_tokens: int, small_tokens: int, written: int) -> None:
    hog = Agent(session, f"hog {number}", hog_tokens)
    small = [Agent(session, f"small {number}/{at}", small_tokens) for at in range(SMALL_AGENTS)]
    began = session.target.now()

    async def short_turns(agent: Agent) -> None:
        for _ in range(TURNS):
            await agent.turn(SMALL_OUTPUT, GROWTH_TOKENS)

    await asyncio.gather(hog.turn(written, 0), *(short_turns(agent) for agent in small))
    took = session.target.now() - began
    turns = [turn for agent in small for turn in agent.turns]
    if not turns or not hog.turns:
        return
    theirs = Case(name="small agents", context_tokens=small_tokens, requests=SMALL_AGENTS, output_tokens=SMALL_OUTPUT)
    its = Case(name="hog", context_tokens=hog_tokens, output_tokens=written)
    session.add(theirs, Metric.STALL_S, max(turn.stall_s for turn in turns), *(turn.answer for turn in turns))
    session.add(theirs, Metric.TTFT_S, median(turn.answer.ttft_s for turn in turns))
    session.add(its, Metric.STALL_S, hog.turns[0].stall_s, hog.turns[0].answer)
    session.add(its, Metric.MAKESPAN_S, hog.turns[0].answer.end_s)
    whole = Case(name="all")
    session.add(whole, Metric.MAKESPAN_S, took)
    ratio = prefilled_per_new([hog, *small])
    if ratio is not None:
        session.add(whole, Metric.PREFILLED_PER_NEW, ratio)

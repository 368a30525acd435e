"""*capacity*: the longest context of which N decode at once before the engine makes one wait for another's end.

For each N the length is halved in. A trial stores N fresh prompts and then asks all of them to write: they decode at
once if the last has its first token before the first has its last.
"""

from __future__ import annotations

from functools import partial

from governor.measure.options import Options
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.weights import prefill_weight

REQUESTS = (2, 3, 4)
OUTPUT_TOKENS = 1024
TAIL_TOKENS = 16
TRIALS = 6
"""The length is known to a 64th of what was looked at."""
_FROM = 0.5
"""Of an equal share of L1: less than that always fits."""


def steps(session: Session, options: Options) -> list[Step]:
    facts = session.facts
    output = options.output_tokens or OUTPUT_TOKENS
    found = []
    for requests in options.requests or REQUESTS:
        case = Case(name="capacity", requests=requests, output_tokens=output)
        if facts.device_tokens is None:
            session.skip(case, "the engine does not tell how much its cache holds")
        elif facts.slots is not None and facts.slots < requests:
            session.skip(case, f"the engine decodes {facts.slots} at once")
        else:
            weight = TRIALS * requests * prefill_weight(facts.device_tokens // requests)
            found.append(Step(f"capacity for {requests}", weight, partial(_search, session, case, facts.device_tokens)))
    return found


async def _search(session: Session, case: Case, pool: int) -> None:
    page = session.facts.page_tokens
    longest = session.facts.window_tokens - case.output_tokens - TAIL_TOKENS - 1
    most = min(pool // case.requests, longest)
    fits, too_long = 0, most + page
    tried = max(page, round(most * _FROM) // page * page)
    for _ in range(TRIALS):
        if await _trial(session, case, tried):
            fits = tried
        else:
            too_long = tried
        following = (fits + too_long) // 2 // page * page
        if following in (fits, tried, 0):
            break
        tried = following
    if not fits:
        session.throw(case, f"not even {tried:,} tokens each decode at once")
        return
    session.add(case, Metric.CONTEXT_TOKENS, fits)
    if too_long > most == longest:
        session.note(f"{case.requests} requests of {fits:,} tokens fit; the window ends before the pool does.")


async def _trial(session: Session, case: Case, context: int) -> bool:
    trial = Case(name="together", context_tokens=context, requests=case.requests, output_tokens=case.output_tokens)
    name = f"capacity {case.requests}/{context}"
    stored = [await session.prompts.fresh(f"{name}/{at}", context) for at in range(case.requests)]
    for prompt in stored:
        await session.ask(trial, prompt)
    again = [
        await session.prompts.extended(prompt, f"{name}/{at} tail", TAIL_TOKENS) for at, prompt in enumerate(stored)
    ]
    answers = await session.together(trial, again, case.output_tokens)
    if answers is None:
        return False
    first_end = min(answer.last_at_s for answer in answers)
    at_once = sum(answer.first_at_s < first_end for answer in answers)
    session.add(trial, Metric.AT_ONCE, at_once, *answers)
    return at_once == case.requests

"""*concurrency*: 1, 2, 4, 8 requests at once: first tokens and prefill rate of cold ones, then the decode rate.

Two phases, so that one does not stand in the other's figures: all are asked cold for one token; then all are asked
again, now cached, and write. The decode rate is of all together, from when the last has its first token to when the
first has its last.
"""

from __future__ import annotations

from functools import partial
from statistics import median

from governor.measure.answer import Answer
from governor.measure.checks import why_not_cold
from governor.measure.options import Options
from governor.measure.prompts import Prompt
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.decode import add_times
from governor.measure.suites.weights import decode_weight, prefill_weight

REQUESTS = (1, 2, 4, 8)
CONTEXT_TOKENS = 24_576
OUTPUT_TOKENS = 256
TAIL_TOKENS = 16


def steps(session: Session, options: Options) -> list[Step]:
    output = options.output_tokens or OUTPUT_TOKENS
    found = []
    for context in options.contexts or (CONTEXT_TOKENS,):
        for requests in options.requests or REQUESTS:
            case = Case(name="decode", context_tokens=context, requests=requests, output_tokens=output)
            if not session.fits(case, context + TAIL_TOKENS) or not _is_room(session, case):
                continue
            weight = prefill_weight(context) * requests + 2 * decode_weight(output)
            for number in range(session.repeats):
                run = partial(_at_once, session, case, number)
                found.append(Step(f"{requests} x {context:,}", weight, run))
    return found


def _is_room(session: Session, case: Case) -> bool:
    pool = session.facts.device_tokens
    needed = case.requests * (case.context_tokens + case.output_tokens)
    if pool is not None and needed > pool:
        session.skip(case, f"{needed:,} tokens do not fit L1 ({pool:,}): they would wait for each other")
        return False
    slots = session.facts.slots
    if slots is not None and case.requests > slots:
        session.skip(case, f"the engine decodes {slots} at once")
        return False
    return True


async def _at_once(session: Session, case: Case, number: int) -> None:
    prefix = f"concurrency {case.context_tokens}/{case.requests}/{number}"
    stored = [await session.prompts.fresh(f"{prefix}/{at}", case.context_tokens) for at in range(case.requests)]
    await _cold(session, Case(name="cold", context_tokens=case.context_tokens, requests=case.requests), stored)
    again = [
        await session.prompts.extended(prompt, f"{prefix}/{at} tail", TAIL_TOKENS) for at, prompt in enumerate(stored)
    ]
    answers = await session.together(case, again, case.output_tokens)
    if answers is not None:
        _decode(session, case, answers)


async def _cold(session: Session, case: Case, prompts: list[Prompt]) -> None:
    answers = await session.together(case, prompts, 1)
    if answers is None:
        return
    for reason in filter(None, (why_not_cold(answer, session.facts) for answer in answers)):
        session.throw(case, reason)
        return
    began = min(answer.asked_at_s for answer in answers)
    last = max(answer.first_at_s for answer in answers) - began
    session.add(case, Metric.TTFT_S, median(answer.ttft_s for answer in answers), *answers)
    session.add(case, Metric.TTFT_MAX_S, last)
    session.add(case, Metric.PREFILL_RATE, sum(answer.prompt_tokens for answer in answers) / last)


def _decode(session: Session, case: Case, answers: list[Answer]) -> None:
    rate = rate_together(answers)
    if rate is None:
        session.throw(case, "one had ended before the last began to write: they did not decode together")
        return
    session.add(case, Metric.DECODE_RATE, rate, *answers)
    add_times(session, case, answers)


def rate_together(answers: list[Answer]) -> float | None:
    """From when the last has its first token to when the first has its last; ``None`` where these do not overlap."""
    start = max(answer.first_at_s for answer in answers)
    end = min(answer.last_at_s for answer in answers)
    if end <= start:
        return None
    return sum(answer.tokens_at(end) - answer.tokens_at(start) for answer in answers) / (end - start)

"""*decode*: tokens a second of one answer, by the depth of its context, and the accept length of speculation.

The context is stored first and asked again with a new tail for each repeat, so that a repeat costs no prefill. The rate
is of the tokens after the first event.
"""

from __future__ import annotations

from functools import partial

from governor.measure.answer import Answer
from governor.measure.options import Options
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.stats import quantile
from governor.measure.suites.weights import decode_weight, prefill_weight

DEPTHS = (64, 16_384, 32_768, 65_536, 131_072)
OUTPUT_TOKENS = 256
TAIL_TOKENS = 16


def steps(session: Session, options: Options) -> list[Step]:
    output = options.output_tokens or OUTPUT_TOKENS
    found = []
    for depth in options.contexts or DEPTHS:
        case = Case(name="decode", context_tokens=depth, output_tokens=output)
        if session.fits(case, depth + TAIL_TOKENS):
            weight = prefill_weight(depth) + decode_weight(output) * session.repeats
            found.append(Step(f"decode at {depth:,}", weight, partial(_at_depth, session, case)))
    return found


async def _at_depth(session: Session, case: Case) -> None:
    stored = await session.prompts.fresh(f"decode {case.context_tokens}", case.context_tokens)
    await session.ask(case, stored)
    for number in range(session.repeats):
        prompt = await session.prompts.extended(stored, f"decode {case.context_tokens}/{number}", TAIL_TOKENS)
        answer = await session.ask(case, prompt, case.output_tokens)
        if answer is None:
            continue
        rate = answer.decode_rate
        if rate is None:
            session.throw(case, "the whole answer came in one event: there is no time to make a rate of")
            continue
        session.add(case, Metric.DECODE_RATE, rate, answer)
        session.add(case, Metric.TOKENS_PER_EVENT, answer.tokens_per_event)
        add_times(session, case, [answer])
    accepted = await session.target.accept_length()
    if accepted is not None:
        session.add(case, Metric.ACCEPT_LENGTH, accepted)


def add_times(session: Session, case: Case, answers: list[Answer]) -> None:
    """Between tokens, where the engine's events count them, and between events."""
    each = [answer.token_times_s() for answer in answers]
    times = [time for some in each if some is not None for time in some]
    if times and all(some is not None for some in each):
        session.add(case, Metric.ITL_P50_MS, quantile(times, 0.5) * 1000)
        session.add(case, Metric.ITL_P99_MS, quantile(times, 0.99) * 1000)
        session.add(case, Metric.ITL_MAX_MS, max(times) * 1000)
    gaps = [gap for answer in answers for gap in answer.gaps_s()]
    if gaps:
        session.add(case, Metric.GAP_P99_MS, quantile(gaps, 0.99) * 1000)
        session.add(case, Metric.GAP_MAX_S, max(gaps))

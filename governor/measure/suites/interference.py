"""*interference*: the longest silence in A's answer while B's prompt is prefilled.

A writes on a short context until B has its first token. The longest gap between two of A's events is taken before B
came, and from B's request to A's first event after B's first token.
"""

from __future__ import annotations

import asyncio
from functools import partial

from governor.errors import UpstreamError
from governor.measure.answer import Answer
from governor.measure.checks import why_not_cold
from governor.measure.options import Options
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.weights import prefill_weight

CONTEXTS = (16_384, 65_536)
STREAM_TOKENS = 16_384
"""Of A, at most: ten minutes of the slowest machine that was published."""
_STREAM_CONTEXT = 64
_ALONE_EVENTS = 20
"""Of A, before B comes."""


def steps(session: Session, options: Options) -> list[Step]:
    found = []
    for context in options.contexts or CONTEXTS:
        case = Case(name="interference", context_tokens=context)
        if session.fits(case, context):
            for number in range(session.repeats):
                found.append(
                    Step(f"B of {context:,}", 2 * prefill_weight(context), partial(_beside, session, case, number))
                )
    return found


class _Moments:
    """Between the two requests. A is looked at after each piece of its stream."""

    def __init__(self) -> None:
        self.events = 0
        self.flows = asyncio.Event()
        self.b_done = False

    def on_piece(self) -> bool:
        """``True``: A is to end."""
        self.events += 1
        if self.events >= _ALONE_EVENTS:
            self.flows.set()
        return self.b_done


async def _beside(session: Session, case: Case, number: int) -> None:
    name = f"interference {case.context_tokens}/{number}"
    facts = session.facts
    room = min(facts.window_tokens // 2, (facts.device_tokens or facts.window_tokens) // 2)
    output = max(1, min(STREAM_TOKENS, room))
    stream = await session.prompts.fresh(f"{name} A", _STREAM_CONTEXT)
    other = await session.prompts.fresh(f"{name} B", case.context_tokens)
    moments = _Moments()
    running = asyncio.create_task(session.target.ask(stream, output, moments.on_piece))
    flowing = asyncio.create_task(moments.flows.wait())
    try:
        await asyncio.wait({running, flowing}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            session.throw(case, "A had ended before B came: its answer is too short for this engine")
            return
        answer_b = await session.ask(case, other)
        moments.b_done = True
        answer_a = await running
    except UpstreamError as error:
        session.throw(case, error.message)
        return
    finally:
        running.cancel()
        flowing.cancel()
        await asyncio.gather(running, flowing, return_exceptions=True)
    if answer_b is not None:
        _judge(session, case, answer_a, answer_b)


def _judge(session: Session, case: Case, stream: Answer, other: Answer) -> None:
    reason = why_not_cold(other, session.facts)
    if reason is not None:
        session.throw(case, f"B: {reason}")
        return
    if not stream.stopped:
        session.throw(case, "A had ended before B had its first token")
        return
    came = other.asked_at_s - stream.asked_at_s
    alone: list[float] = []
    beside: list[float] = []
    for earlier, later in zip(stream.marks, stream.marks[1:], strict=False):
        (alone if later.at_s <= came else beside).append(later.at_s - earlier.at_s)
    session.add(case, Metric.GAP_MAX_S, max(beside), other)
    session.add(case, Metric.TTFT_S, other.ttft_s)
    if alone:
        session.add(Case(name="alone", context_tokens=case.context_tokens), Metric.GAP_MAX_S, max(alone))

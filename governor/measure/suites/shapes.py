"""*shapes*: what is reused of a prompt, by how it relates to what was stored: the same context each time.

Hybrid models can resume only where a state was kept, so that two prompts with the same share of known tokens cost
seconds or nothing. Each shape has prompts of its own; one that the engine can only learn at a second visit is asked as
the third of its kind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import lcm

from governor.errors import UpstreamError
from governor.measure.flood import STATE_GRID, Flood
from governor.measure.options import Options
from governor.measure.prompts import Prompt
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.weights import prefill_weight

CONTEXT_TOKENS = 7600
"""As published; it ends within a page."""
_NEW_TOKENS = 200
"""Of a continuation."""
_DIVERGES_AT = 0.6

_Stored = tuple[list[Prompt], Prompt]
"""What is asked beforehand, and the question."""
_Shape = Callable[[Session, str, int], Awaitable[_Stored]]


def steps(session: Session, options: Options) -> list[Step]:
    flood = Flood(session)
    found = []
    for context in options.contexts or (CONTEXT_TOKENS,):
        if not session.fits(Case(name="shapes", context_tokens=context), context + _NEW_TOKENS):
            continue
        for name, shape in _SHAPES.items():
            for number in range(session.repeats):
                run = partial(_ask, session, name, shape, context, number)
                found.append(Step(f"{name} {context:,}", 2 * prefill_weight(context), run))
        if session.facts.has_host:
            for number in range(session.repeats):
                run = partial(_from_host, session, flood, context, number)
                found.append(Step(f"shapes from L2 {context:,}", 12 * prefill_weight(context), run))
    return found


async def _ask(session: Session, name: str, shape: _Shape, context: int, number: int) -> None:
    stored, prompt = await shape(session, f"{name} {context}/{number}", context)
    case = Case(name=name, context_tokens=context)
    for each in stored:
        if await session.ask(case, each) is None:
            return
    await _measure(session, case, prompt)


async def _from_host(session: Session, flood: Flood, context: int, number: int) -> None:
    """All shapes after one flood."""
    questions: list[tuple[Case, Prompt]] = []
    for name, shape in _SHAPES.items():
        if shape is _cold:
            continue
        stored, prompt = await shape(session, f"{name} from L2 {context}/{number}", context)
        case = Case(name=f"{name}, from L2", context_tokens=context)
        for each in stored:
            await session.ask(case, each)
        questions.append((case, prompt))
    kept = sum(prompt.tokens for _, prompt in questions) * 3
    reason = flood.why_impossible(kept)
    try:
        if session.facts.device_states:
            await flood.push_out_states()
        elif reason is None:
            await flood.push_out(kept)
    except UpstreamError as error:
        reason = error.message
    for case, prompt in questions:
        if reason is None:
            await _measure(session, case, prompt)
        else:
            session.skip(case, reason)


async def _measure(session: Session, case: Case, prompt: Prompt) -> None:
    answer = await session.ask(case, prompt)
    if answer is None:
        return
    session.add(case, Metric.TTFT_S, answer.ttft_s, answer)
    if answer.cached_tokens is not None:
        session.add(case, Metric.CACHED_TOKENS, answer.cached_tokens)


async def _cold(session: Session, name: str, context: int) -> _Stored:
    return [], await session.prompts.fresh(name, context)


async def _continuation(session: Session, name: str, context: int) -> _Stored:
    """What was stored, and something new at its end."""
    before = await session.prompts.fresh(name, context - _NEW_TOKENS)
    return [before], await session.prompts.extended(before, f"{name} new", _NEW_TOKENS)


async def _divergence(session: Session, name: str, context: int) -> _Stored:
    """A template that renders history in another way: the same up to here, then something else."""
    before = await session.prompts.fresh(name, context)
    return [before], await session.prompts.diverged(before, f"{name} other", round(context * _DIVERGES_AT))


async def _branch(session: Session, name: str, context: int) -> _Stored:
    """The third branch of one beginning; the second one's miss is what leaves a state at the fork."""
    at = round(context * _DIVERGES_AT)
    first = await session.prompts.fresh(name, context)
    second, third = [await session.prompts.diverged(first, f"{name} {which}", at) for which in ("second", "third")]
    return [first, second], third


async def _repeat(session: Session, name: str, context: int) -> _Stored:
    prompt = await session.prompts.fresh(name, context)
    return [prompt], prompt


async def _aligned(session: Session, name: str, context: int) -> _Stored:
    """An exact repeat that ends with a page: its last token has to be computed, and with it the page."""
    grid = lcm(STATE_GRID, session.facts.page_tokens)
    prompt = await session.prompts.fresh(name, max(grid, context // grid * grid))
    return [prompt], prompt


_SHAPES: dict[str, _Shape] = {
    "cold": _cold,
    "continuation": _continuation,
    "template divergence": _divergence,
    "branch": _branch,
    "exact repeat": _repeat,
    "page-aligned repeat": _aligned,
}

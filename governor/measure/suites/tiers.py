"""*tiers*: the time to a first token of one context, cold and from each tier that there is.

Each repeat has prompts of its own: asked cold; asked again with a new tail (L1); again after a flood (L2, or a prefill
where there is no L2); again after L1 and L2 were emptied (L3); again after a restart. An answer counts where the
engine says that this tier served it. As many contexts as L2 keeps beside a flood share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from governor.errors import UpstreamError
from governor.measure.answer import Answer
from governor.measure.checks import MOSTLY, TIER_NAMES, why_not_served
from governor.measure.flood import Flood
from governor.measure.options import Options, Restart
from governor.measure.prompts import Prompt
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step
from governor.measure.suites.weights import prefill_weight
from serve.twin.measured import HitTier

CONTEXTS = (4096, 16_384, 32_768, 65_536, 131_072, 196_608)
TAIL_TOKENS = 48
"""New ones behind the stored context; with the answer's token they stay within one step of where states are kept, so
that asking leaves no deeper state and every tier is asked for the same depth."""
_EVICTED = "return after eviction"
_RESTARTED = "L3 after a restart"
_AS_FAST = 2.0
"""A cold prompt takes longer than so many hits."""
_LONG = 2048


def steps(session: Session, options: Options) -> list[Step]:
    flood = Flood(session)
    contexts = [
        context
        for context in options.contexts or CONTEXTS
        if session.fits(Case(name="cold", context_tokens=context), context + TAIL_TOKENS)
    ]
    found: list[Step] = []
    for number in range(session.repeats):
        for group in _groups(contexts, flood.room_tokens):
            found += _Round(session, flood, options.restart, group, number).steps()
    return found


def _groups(contexts: Sequence[int], room_tokens: int | None) -> list[list[int]]:
    """Contexts that are pushed out together; one that is too large for L2's room is alone."""
    groups: list[list[int]] = []
    for context in contexts:
        if groups and room_tokens is not None and sum(groups[-1]) + context + TAIL_TOKENS <= room_tokens:
            groups[-1].append(context)
        else:
            groups.append([context])
    return groups


class _Round:
    """One prompt of each context of a group through all tiers."""

    def __init__(
        self, session: Session, flood: Flood, restart: Restart | None, contexts: Sequence[int], number: int
    ) -> None:
        self._session = session
        self._flood = flood
        self._restart = restart
        self._contexts = contexts
        self._number = number
        self._again: dict[int, Prompt] = {}
        self._cold_s: dict[int, float] = {}

    def steps(self) -> list[Step]:
        facts = self._session.facts
        found = []
        for context in self._contexts:
            found.append(Step(f"cold {context:,}", prefill_weight(context), partial(self._cold, context)))
            found.append(Step(f"L1 {context:,}", 0.5, partial(self._l1, context)))
        flood_weight = prefill_weight(16_384) * (1 + self._flood.tokens // 16_384)
        name = "L2" if facts.has_host else _EVICTED
        found.append(Step(f"{name}, after a flood", flood_weight, self._flooded))
        if facts.storage is None:
            self._session.skip("L3", "the engine has no L3")
            return found
        found.append(Step("L3, after L1 and L2 were emptied", 10, self._emptied))
        if self._restart is not None:
            found.append(Step(_RESTARTED, 60, self._restarted))
        return found

    async def _cold(self, context: int) -> None:
        session, case = self._session, Case(name="cold", context_tokens=context)
        name = f"tiers {context}/{self._number}"
        stored = await session.prompts.fresh(name, context)
        answer = await session.cold(case, stored)
        if answer is None:
            return
        self._again[context] = await session.prompts.extended(stored, f"{name} tail", TAIL_TOKENS)
        self._cold_s[context] = answer.ttft_s
        session.add(case, Metric.TTFT_S, answer.ttft_s, answer)
        session.add(case, Metric.PREFILL_RATE, answer.prompt_tokens / answer.ttft_s)

    async def _l1(self, context: int) -> None:
        answer = await self._hit("L1", HitTier.DEVICE, context)
        cold_s = self._cold_s.get(context)
        if answer is not None and cold_s is not None and context >= _LONG and cold_s < answer.ttft_s * _AS_FAST:
            self._session.note(
                f"A cold prompt of {context:,} tokens was as fast as one from L1: either the engine does not tell "
                "what it reuses, or something else takes the time."
            )

    async def _flooded(self) -> None:
        session = self._session
        name = "L2" if session.facts.has_host else _EVICTED
        kept = sum(self._contexts) + TAIL_TOKENS * len(self._contexts)
        reason = self._flood.why_impossible(kept)
        if reason is not None:
            self._each(lambda context: session.skip(Case(name=name, context_tokens=context), reason))
            return
        try:
            await self._flood.push_out(kept)
        except UpstreamError as error:
            message = error.message
            self._each(lambda context: session.throw(Case(name=name, context_tokens=context), message))
            return
        for context in self._contexts:
            if session.facts.has_host:
                await self._hit(name, HitTier.HOST, context)
            else:
                await self._evicted(context)

    async def _evicted(self, context: int) -> None:
        """What it costs to come back where only L1 keeps anything."""
        case = Case(name=_EVICTED, context_tokens=context)
        answer = await self._ask_again(case)
        if answer is None:
            return
        if _stayed(answer):
            self._session.throw(case, f"the flood left it in L1 ({answer.cached_tokens:,} tokens were cached)")
            return
        self._session.add(case, Metric.TTFT_S, answer.ttft_s, answer)

    async def _emptied(self) -> None:
        session = self._session
        try:
            await self._flood.empty()
        except UpstreamError as error:
            message = f"L1 and L2 could not be emptied: {error.message}"
            self._each(lambda context: session.skip(Case(name="L3", context_tokens=context), message))
            return
        for context in self._contexts:
            await self._hit("L3", HitTier.STORAGE, context)

    async def _restarted(self) -> None:
        if self._restart is None:
            return
        await self._flood.settle()
        await self._restart()
        for context in self._contexts:
            await self._hit(_RESTARTED, HitTier.STORAGE, context)

    async def _hit(self, name: str, tier: HitTier, context: int) -> Answer | None:
        case = Case(name=name, context_tokens=context)
        answer = await self._ask_again(case)
        if answer is None:
            return None
        reason = why_not_served(answer, tier, context)
        if reason is not None:
            self._session.throw(case, reason)
            return None
        if answer.split is None and tier is not HitTier.DEVICE:
            self._session.note(f"The engine does not tell tiers apart: that {TIER_NAMES[tier]} served is not proven.")
        self._session.add(case, Metric.TTFT_S, answer.ttft_s, answer)
        return answer

    async def _ask_again(self, case: Case) -> Answer | None:
        """The stored context with its tail, which is the same each time."""
        prompt = self._again.get(case.context_tokens)
        if prompt is None:
            self._session.skip(case, "there was no cold answer to come back to")
            return None
        return await self._session.ask(case, prompt)

    def _each(self, tell: Callable[[int], None]) -> None:
        for context in self._contexts:
            tell(context)


def _stayed(answer: Answer) -> bool:
    """The flood did not push it out of L1."""
    cached, split = answer.cached_tokens, answer.split
    if not cached:
        return False
    return split is None or (split.device or 0) >= cached * MOSTLY

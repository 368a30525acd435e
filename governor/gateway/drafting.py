"""A shorter form of one prompt, counted as the engine will see it. Decides nothing about it; only a summary asks the
engine to write."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import msgspec

from governor.compress.draft import Left
from governor.compress.limits import Limits
from governor.compress.plan import NoPlan, Plan, plan, wants_summary
from governor.compress.stages.drop import Summary
from governor.compress.summary import asked_about
from governor.compress.verify import digest_prompt
from governor.errors import BadRequest
from governor.gateway.exact import exact_count
from governor.gateway.planner import prompt_of
from governor.gateway.prepared import Preparer, may_prepare
from governor.gateway.shaped import Shaped
from governor.gateway.summary import Summariser, SummaryAsked, Written
from governor.gateway.turn import Turn
from governor.gateway.weights import Weights, weigh
from governor.policy.model import CompressionPolicy, CompressionStage, Policy
from governor.schedule.loop import Admission
from governor.store.archive_model import LeftText
from governor.tokens.counter import Counter
from governor.types import TokenCount, TurnId
from governor.wire.messages import joined, without_reasoning
from governor.wire.request import with_messages
from serve.engine import Engine

_TRIES = 3
"""Plans for one prompt: each aims lower by what the engine's count said of the one before."""
_REASONING = b'"reasoning'
_RESULTS = frozenset({"tool", "function"})
_SUMMARISING = "its history is summarised first"


class Drafted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a try, before it is judged."""

    plan: Plan | None = None
    shaped: Shaped | None = None
    """``None``: nothing came out that could be sent."""
    digest: bytes = b""
    after_tokens: int | None = None
    """Exact, or the upper end of a count."""
    left: tuple[LeftText, ...] = ()
    stages: str = ""
    """What each freed, for a person."""
    detail: str = ""
    """Why nothing came out."""
    summary_turn: TurnId | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that is to be made shorter."""

    turn: Turn
    now: Shaped
    count: TokenCount
    """Of the prompt as it is."""
    policy: Policy
    limits: Limits
    trigger_tokens: int
    """The policy's own."""
    is_asked_for: bool
    """By the owner."""
    window_tokens: int
    cap_tokens: int
    """What the answer may have."""

    @property
    def is_due(self) -> bool:
        """By the policy's own trigger; ``False``: somebody else wants it shorter."""
        return self.count.tokens >= self.trigger_tokens

    @property
    def fits(self) -> bool:
        """It leaves the answer all that it may have."""
        return self.count.upper + self.cap_tokens <= self.window_tokens


class Drafting:
    """One per governor."""

    def __init__(self, engine: Engine, counter: Counter, summariser: Summariser, admission: Admission) -> None:
        self._engine = engine
        self._counter = counter
        self._summariser = summariser
        self.preparer = Preparer(summariser, admission, self.weigh)

    async def drafted(self, case: Case) -> Drafted | None:
        """``None``: this is no moment to cut, and the prompt fits as it is. Within a chain of tool calls no summary is
        written, and no round dropped that the next summary could tell of."""
        policy, now = case.policy.compression, case.now
        weights = await self.weigh(now, case.count, case.policy)
        written = await self._summary(case, weights)
        postpones = case.fits and CompressionStage.SUMMARY in policy.stages and _in_a_chain(now.request.roles)
        if postpones:
            kept = tuple(stage for stage in policy.stages if stage is not CompressionStage.DROP)
            policy = msgspec.structs.replace(policy, stages=kept)
        aim, drafted, over = case.limits, Drafted(), 0
        for _ in range(_TRIES):
            made = await asyncio.to_thread(_plan, now, weights, policy, aim, written.summary)
            if isinstance(made, NoPlan):
                drafted = drafted if drafted.shaped is not None else Drafted(detail=str(made))
                break
            drafted = await self._counted(case, made)
            over = (drafted.after_tokens or 0) - case.limits.target_tokens
            if drafted.shaped is None or over <= 0:
                break
            aim = msgspec.structs.replace(aim, target_tokens=max(1, made.after_tokens - over))
        if postpones and (drafted.shaped is None or over > 0):
            return None
        if written.summary is not None:
            self.preparer.on_used(case.turn.agent, now)
        return _with_summary(drafted, written)

    async def weigh(self, now: Shaped, count: TokenCount, policy: Policy) -> Weights:
        """What each message weighs. Raises nothing."""
        messages, tools = now.prompt.messages, now.prompt.tools
        bare = None
        if self._engine.capabilities.counts_prompts and any(_REASONING in raw for raw in messages):
            try:
                stripped = without_reasoning(messages, now.request.roles)
                counted = await exact_count(self._engine, with_messages(now.request, stripped), policy)
            except BadRequest:  # a key that comes twice
                counted = None
            bare = None if counted is None else (stripped, counted)
        return await weigh(self._counter, messages, tools, count, without_reasoning=bare)

    async def _summary(self, case: Case, weights: Weights) -> Written:
        """One that was prepared, or, at a question of the user's, one that is written now if it is needed."""
        now, policy = case.now, case.policy.compression
        if not may_prepare(policy):
            return Written()
        prepared = self.preparer.find(case.turn.agent, now)
        if prepared is not None:
            return prepared.written
        if _in_a_chain(now.request.roles):
            return Written()
        wanted = await asyncio.to_thread(
            wants_summary,
            now.prompt.messages,
            weights.sizes,
            size_of=weights.size_of,
            fixed_tokens=weights.fixed_tokens,
            policy=policy,
            limits=case.limits,
            covered=asked_about(now.request.messages),
        )
        if wanted is None:
            return Written()
        case.turn.on_queued(_SUMMARISING)
        asked = SummaryAsked(
            agent=case.turn.agent,
            parent=case.turn,
            request=now.request,
            located=now.located,
            count=case.count,
            weights=weights,
            policy=case.policy,
            window_tokens=case.window_tokens,
        )
        return await self._summariser.write(asked)

    async def _counted(self, case: Case, made: Plan) -> Drafted:
        """What the engine will see of it. One that has counted the prompt as it is and cannot count this one would
        refuse it; where it did not count that one either, the plan's own sum stands, which agrees with what the whole
        prompt was counted as, and is as sure in proportion."""
        now, before = case.now, case.count
        request = with_messages(now.request, made.messages)
        prompt = prompt_of(request)
        margin = math.ceil(before.margin * made.after_tokens / max(1, before.tokens))
        count = await exact_count(self._engine, request, case.policy)
        if count is None and not (before.exact and self._engine.capabilities.counts_prompts):
            count = msgspec.structs.replace(before, tokens=made.after_tokens, margin=margin)
        stages = ", ".join(f"{stage.value} {tokens:,}" for stage, tokens in made.freed_by_stage.items())
        if count is None:
            return Drafted(stages=stages, detail="the engine could not render what came out")
        return Drafted(
            plan=made,
            shaped=msgspec.structs.replace(
                now, request=request, prompt=prompt, count=count if count.exact else None, estimate=count
            ),
            digest=digest_prompt(prompt.messages, prompt.tools),
            after_tokens=count.upper,
            left=_left(made.left, {done.handle: f"{done.stage.value}: {done.why}" for done in made.done}),
            stages=stages,
        )


def _plan(
    now: Shaped, weights: Weights, policy: CompressionPolicy, limits: Limits, summary: Summary | None
) -> Plan | NoPlan:
    return plan(
        now.prompt.messages,
        weights.sizes,
        size_of=weights.size_of,
        fixed_tokens=weights.fixed_tokens,
        policy=policy,
        limits=limits,
        summary=summary,
    )


def _with_summary(drafted: Drafted, written: Written) -> Drafted:
    """With what became of the summary, and what left the prompt that it was written from."""
    if written.rejected is not None:
        detail = "; ".join(filter(None, (drafted.detail, f"no summary: {written.rejected}")))
        drafted = msgspec.structs.replace(drafted, detail=detail)
    known = {left.handle for left in drafted.left}
    further = tuple(left for left in _left(written.left, {}) if left.handle not in known)
    return msgspec.structs.replace(drafted, left=(*drafted.left, *further), summary_turn=written.turn_id)


def _in_a_chain(roles: tuple[str, ...]) -> bool:
    """The model is to go on from results that it has not seen."""
    answered = max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)
    return any(role in _RESULTS for role in roles[answered + 1 :])


def _left(left: tuple[Left, ...], why: Mapping[str, str]) -> tuple[LeftText, ...]:
    """Copied: what left is a view on the request's body. ``why``: by handle."""
    return tuple(LeftText(handle=each.handle, body=_body(each), what=why.get(each.handle, "")) for each in left)


def _body(left: Left) -> bytes:
    """One value as it is, several as a list."""
    return bytes(left.values[0]) if len(left.values) == 1 else joined(left.values)

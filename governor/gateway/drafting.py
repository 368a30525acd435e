"""A shorter form of one prompt, counted as the engine will see it. Changes nothing; only a summary asks the engine to
write."""

from __future__ import annotations

import asyncio
import math

import msgspec

from governor.compress.draft import Left
from governor.compress.limits import Limits
from governor.compress.plan import NoPlan, Plan, plan
from governor.compress.verify import digest_prompt
from governor.errors import BadRequest
from governor.gateway.planner import prompt_of
from governor.gateway.shaped import Shaped
from governor.gateway.weights import Weights, weigh
from governor.policy.model import CompressionPolicy, CompressionStage
from governor.store.archive_model import LeftText
from governor.tokens.counter import Counter
from governor.types import TokenCount, TurnId
from governor.wire.messages import joined, without_reasoning
from governor.wire.request import with_messages
from serve.engine import Endpoint, Engine

_TRIES = 3
"""Plans for one prompt: each aims lower by what the engine's count said of the one before."""
_REASONING = b'"reasoning'
_RESULTS = frozenset({"tool", "function"})


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


class Drafting:
    """One per governor."""

    def __init__(self, engine: Engine, counter: Counter) -> None:
        self._engine = engine
        self._counter = counter

    async def drafted(
        self, now: Shaped, count: TokenCount, policy: CompressionPolicy, limits: Limits, *, fits: bool
    ) -> Drafted | None:
        """``count``: of the prompt as it is. ``fits``: it leaves the answer all that it may write. ``None``: this is no
        moment to cut, and the prompt fits as it is."""
        weights = await self._weigh(now, count)
        stages = policy
        if fits and _in_a_chain(now.request.roles):
            kept = tuple(stage for stage in policy.stages if stage is not CompressionStage.DROP)
            stages = msgspec.structs.replace(policy, stages=kept)
        aim, drafted = limits, Drafted()
        for _ in range(_TRIES):
            made = await asyncio.to_thread(self._plan, now, weights, stages, aim)
            if isinstance(made, NoPlan):
                if drafted.shaped is not None:  # above the target, which no plan comes down to
                    return drafted
                return None if stages is not policy else Drafted(detail=str(made))
            drafted = await self._counted(now, made, count)
            over = (drafted.after_tokens or 0) - limits.target_tokens
            if drafted.shaped is None or over <= 0:
                return drafted
            aim = msgspec.structs.replace(aim, target_tokens=max(1, aim.target_tokens - over))
        return drafted

    def _plan(self, now: Shaped, weights: Weights, policy: CompressionPolicy, limits: Limits) -> Plan | NoPlan:
        return plan(
            now.prompt.messages,
            weights.sizes,
            size_of=weights.size_of,
            fixed_tokens=weights.fixed_tokens,
            policy=policy,
            limits=limits,
        )

    async def _weigh(self, now: Shaped, count: TokenCount) -> Weights:
        messages, tools = now.prompt.messages, now.prompt.tools
        bare = None
        if count.exact and any(_REASONING in raw for raw in messages):
            try:
                stripped = without_reasoning(messages, now.request.roles)
            except BadRequest:  # a key that comes twice
                stripped = None
            counted = None if stripped is None else await self._count(now, stripped)
            bare = None if stripped is None or counted is None else (stripped, counted)
        return await weigh(self._counter, messages, tools, count, without_reasoning=bare)

    async def _count(self, now: Shaped, messages: list[bytes]) -> TokenCount | None:
        body = now.request.json.edited({"messages": joined(messages)})
        return await self._engine.count_prompt(Endpoint.CHAT, body)

    async def _counted(self, now: Shaped, made: Plan, before: TokenCount) -> Drafted:
        """What the engine will see of it. One that counts prompts and cannot count this one would refuse it; for one
        that cannot count, the plan's own sum stands, which agrees with what the whole prompt was counted as, and is as
        sure in proportion."""
        request = with_messages(now.request, made.messages)
        prompt = prompt_of(request)
        margin = math.ceil(before.margin * made.after_tokens / max(1, before.tokens))
        count: TokenCount | None = msgspec.structs.replace(before, tokens=made.after_tokens, margin=margin)
        if self._engine.capabilities.counts_prompts:
            count = await self._engine.count_prompt(Endpoint.CHAT, request.json.body)
        stages = ", ".join(f"{stage.value} {tokens:,}" for stage, tokens in made.freed_by_stage.items())
        if count is None:
            return Drafted(stages=stages, detail="the engine could not render what came out")
        return Drafted(
            plan=made,
            shaped=msgspec.structs.replace(now, request=request, prompt=prompt, count=count if count.exact else None),
            digest=digest_prompt(prompt.messages, prompt.tools),
            after_tokens=count.upper,
            left=_left(made),
            stages=stages,
        )


def _in_a_chain(roles: tuple[str, ...]) -> bool:
    """The model is to go on from results that it has not seen."""
    answered = max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)
    return any(role in _RESULTS for role in roles[answered + 1 :])


def _left(made: Plan) -> tuple[LeftText, ...]:
    """Copied: what left is a view on the request's body."""
    return tuple(LeftText(handle=left.handle, body=_body(left), what=_what(left)) for left in made.left)


def _what(left: Left) -> str:
    return "one text" if len(left.values) == 1 else f"{len(left.values)} messages"


def _body(left: Left) -> bytes:
    """One value as it is, several as a list."""
    return bytes(left.values[0]) if len(left.values) == 1 else joined(left.values)

"""From a planned turn to what it asks of L1. Pure."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from governor.budget.claim import Claim, Segment
from governor.gateway.planner import Measure
from governor.policy.model import Policy
from governor.tokens.chain import Located
from governor.types import AgentName, TokenCount, TurnId

_DIGEST_BYTES = 16


def claim_of(
    turn_id: TurnId,
    agent: AgentName,
    measure: Measure,
    located: Located,
    policy: Policy,
    *,
    output_cap: int,
    choices: int,
    pauses: bool,
) -> Claim:
    """``output_cap``: what it may write in all; where it can be paused, only the next piece of it is reserved.

    Two turns share what the engine has reported as one prompt of their conversation, and nothing else: what two
    requests compute at the same time is there twice (SGLang does not join requests in flight).
    """
    count, known = measure.count, located.known
    output = min(output_cap, policy.slices.lookahead) if pauses else output_cap
    shared = 0
    segments: list[Segment] = []
    if known is not None and not known.removed and 0 < known.prompt_tokens <= count.tokens:
        shared = known.prompt_tokens
        segments.append(Segment(_chain(agent, located, known.messages), shared))
    segments.append(Segment(turn_id.encode(), count.tokens - shared))
    return Claim(
        turn_id=turn_id,
        agent=agent,
        segments=tuple(segments),
        output_tokens=output,
        most_output_tokens=output_cap,
        margin_tokens=max(0, count.upper - count.tokens),
        choices=choices,
    )


def claim_now(claim: Claim, policy: Policy, output_cap: int, prompt_tokens: int | None, written_tokens: int) -> Claim:
    """Of a turn that was paused, which began with ``claim``. ``prompt_tokens``: of its prompt now, as the engine has
    counted it, what it has written included; ``None``: nothing is written yet."""
    most_tokens = max(1, output_cap - written_tokens)
    output_tokens = min(most_tokens, policy.slices.lookahead)
    claim = msgspec.structs.replace(claim, output_tokens=output_tokens, most_output_tokens=most_tokens)
    if prompt_tokens is None:
        return claim
    *shared, own = claim.segments
    rest = prompt_tokens - sum(segment.tokens for segment in shared)
    segments = (*shared, Segment(own.id, rest)) if rest >= 0 else (Segment(own.id, prompt_tokens),)
    return msgspec.structs.replace(claim, segments=segments, margin_tokens=0)


def claim_to_go_on(claim: Claim, policy: Policy, count: TokenCount, *, output_cap: int, pauses: bool) -> Claim:
    """Of a turn that began with ``claim`` and goes on with a longer prompt."""
    output = min(output_cap, policy.slices.lookahead) if pauses else output_cap
    began = msgspec.structs.replace(claim, output_tokens=output, most_output_tokens=output_cap)
    *shared, own = began.segments
    rest = count.tokens - sum(segment.tokens for segment in shared)
    segments = (*shared, Segment(own.id, rest)) if rest >= 0 else (Segment(own.id, count.tokens),)
    return msgspec.structs.replace(began, segments=segments, margin_tokens=max(0, count.upper - count.tokens))


def context_name(agent: AgentName, located: Located) -> str:
    """Of the line of a conversation that the prompt goes on with; the next prompt of it has the same."""
    return f"{agent}/{located.path}"


def prompt_name(agent: AgentName, located: Located) -> bytes:
    """Equal for the very same prompt of the same conversation."""
    return _chain(agent, located, len(located.digests))


def _chain(agent: AgentName, located: Located, messages: int) -> bytes:
    """Names a beginning of a conversation; the session stands for the tools and the model, which it has in common."""
    named = blake2b(f"{agent} {located.session_id} {messages}".encode(), digest_size=_DIGEST_BYTES)
    named.update(b"".join(located.digests[:messages]))
    return named.digest()

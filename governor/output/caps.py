"""Output caps: how many tokens a turn may write, so that prompt + output always fits the window.

``cap = min(client's cap or the policy's default, policy cap of the turn's kind, window - prompt - margin)``, never
below the policy's floor: with less room than that the client is told that its context is full, in numbers.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from governor.errors import ContextOverflow
from governor.policy.model import Policy
from governor.types import TokenCount, TurnKind


class CapReason(StrEnum):
    """Which bound set the cap."""

    CLIENT = "client"
    DEFAULT = "default"
    """The client named none; ``output.default`` was used."""
    POLICY = "policy"
    WINDOW = "window"


class CapDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The cap of one turn, in tokens."""

    tokens: int
    requested: int | None
    reason: CapReason
    window_tokens: int | None


def effective_window(engine_tokens: int | None, policy: Policy) -> int | None:
    """Prompt + output this agent may use: the smaller of what the engine reports and the policy's ceiling."""
    known = [tokens for tokens in (engine_tokens, policy.context.ceiling_tokens) if tokens is not None]
    return min(known, default=None)


def wanted_cap(policy: Policy, kind: TurnKind, requested: int | None) -> tuple[int, CapReason]:
    """The cap before the window is looked at."""
    limit = policy.output.cap_for(kind)
    if requested is not None:
        return (requested, CapReason.CLIENT) if requested <= limit else (limit, CapReason.POLICY)
    if policy.output.default is not None and policy.output.default <= limit:
        return policy.output.default, CapReason.DEFAULT
    return limit, CapReason.POLICY


def decide_cap(
    policy: Policy,
    kind: TurnKind,
    *,
    requested: int | None,
    prompt: TokenCount,
    window_tokens: int | None,
    tools_usable: bool = False,
) -> CapDecision:
    """The cap of a turn. Raises :class:`ContextOverflow` when the prompt surely leaves no room for an answer.

    An inexact count refuses only beyond its margin: a prompt that may fit is sent, clamped at the careful end.
    A client that asks for less than the floor on a prompt of more than half the window has clamped itself to the
    last token (OpenClaw does, down to 1): it is told that its context is full, or it would go on for ever.
    """
    tokens, reason = wanted_cap(policy, kind, requested)
    if window_tokens is None:
        return CapDecision(tokens=tokens, requested=requested, reason=reason, window_tokens=None)
    floor = min(policy.output.floor, tokens)
    self_clamped = (
        tools_usable
        and requested is not None
        and requested < policy.output.floor
        and prompt.tokens > window_tokens // 2
    )
    if prompt.lower + floor > window_tokens or self_clamped:
        raise ContextOverflow(
            prompt_tokens=prompt.tokens, window_tokens=window_tokens, reserve_tokens=policy.output.floor
        )
    room = max(floor, window_tokens - prompt.upper)
    if room < tokens:
        tokens, reason = room, CapReason.WINDOW
    return CapDecision(tokens=tokens, requested=requested, reason=reason, window_tokens=window_tokens)

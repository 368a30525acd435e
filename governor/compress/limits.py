"""The policy's sizes as numbers of tokens, once the agent's window is known."""

from __future__ import annotations

import msgspec

from governor.policy.checks import is_share
from governor.policy.model import CompressionPolicy, ShareOrTokens


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """All in tokens of the whole rendered prompt, but for the last two: those are of messages."""

    trigger_tokens: int
    """A prompt of so many tokens or more is to be made shorter."""
    target_tokens: int
    """It is made no longer than this, or left alone."""
    gain_tokens: int
    """Least that must be freed."""
    recent_tokens: int
    """The newest messages up to so much are spared as long as others are left."""
    oversized_tokens: int
    """A single tool result may have so much."""


def limits_of(policy: CompressionPolicy, window_tokens: int) -> Limits:
    """The policy's sizes in a window of so many tokens.

    Where shares and tokens are mixed, the window decides whether the target lies below the trigger; there it is lowered
    to the trigger less the gain, since a prompt over its trigger that is within its target is a contradiction.
    """

    def tokens(value: ShareOrTokens) -> int:
        return max(1, int(value * window_tokens if is_share(value) else value))

    trigger, gain = tokens(policy.trigger), tokens(policy.gain)
    target = max(1, min(tokens(policy.target), trigger - gain))
    return Limits(
        trigger_tokens=trigger,
        target_tokens=target,
        gain_tokens=gain,
        recent_tokens=tokens(policy.recent),
        oversized_tokens=tokens(policy.oversized),
    )

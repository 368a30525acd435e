"""Whether an answer says what the case is about. Pure: each check gives the reason to throw it out, or ``None``.

A figure of a cold prompt that was half cached, or of a restore that came from L1, looks like any other; only the
engine's own ``cached_tokens`` tells.
"""

from __future__ import annotations

from governor.measure.answer import Answer
from governor.measure.errors import NoUsage
from governor.measure.result import EngineFacts, Split
from serve.twin.measured import HitTier

MOSTLY = 0.9
"""Share of what was reused that must come from the tier in question: a restore of which half lay in L1 anyway is half a
restore."""

TIER_NAMES = {HitTier.DEVICE: "L1", HitTier.HOST: "L2", HitTier.STORAGE: "L3"}


def require_usage(answer: Answer) -> None:
    """Raises :class:`NoUsage`: no answer of such an engine can be measured."""
    if answer.stopped:
        return
    missing = [
        name
        for name, count in (
            ("prompt_tokens", answer.usage.prompt_tokens),
            ("completion_tokens", answer.usage.completion_tokens),
        )
        if count is None
    ]
    if missing:
        raise NoUsage(
            f"the engine reports no {' and no '.join(missing)} in its stream. Rates are made from usage only, because "
            "an event of a stream may carry several tokens. Make it honour stream_options.include_usage."
        )


def why_short(answer: Answer) -> str | None:
    """It ended before the length it was asked for, so its rate is of something else."""
    if answer.stopped or answer.written_tokens >= answer.asked_tokens:
        return None
    why = "something caps it" if answer.finish == "length" else "the engine does not obey ignore_eos"
    return (
        f"it ended after {answer.written_tokens:,} of {answer.asked_tokens:,} tokens "
        f"(finish_reason {answer.finish or 'none'}): {why}"
    )


def why_not_cold(answer: Answer, facts: EngineFacts) -> str | None:
    """Part of it was in a cache, beyond what every prompt shares."""
    cached = answer.cached_tokens
    if not cached or cached <= facts.template_tokens:
        return None
    where = f" ({answer.split})" if answer.split is not None else ""
    return f"{cached:,} of {answer.prompt_tokens:,} tokens were cached{where}; it should have been cold"


def why_not_served(answer: Answer, tier: HitTier, depth_tokens: int) -> str | None:
    """Not reused, or not from this tier. ``depth_tokens``: what was stored before."""
    cached = answer.cached_tokens
    if cached is None:
        return None
    if not cached or cached < depth_tokens * MOSTLY:
        return f"{cached:,} of {depth_tokens:,} stored tokens were reused; {TIER_NAMES[tier]} should have served them"
    split = answer.split
    if split is None:
        return None
    if (of_tier(split, tier) or 0) < cached * MOSTLY:
        return f"served by {split}, not by {TIER_NAMES[tier]}"
    return None


def of_tier(split: Split, tier: HitTier) -> int | None:
    return {HitTier.DEVICE: split.device, HitTier.HOST: split.host, HitTier.STORAGE: split.storage}[tier]

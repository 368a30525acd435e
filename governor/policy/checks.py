"""What the values of a policy must hold between them. Pure; the numbers at fault are in the message."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from governor.policy.model import CompressionMode, CompressionPolicy, Policy, ShareOrTokens

GOVERNED_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "input", "system", "tools", "functions", "stream", "stream_options"),
        *("n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens"),
    }
)
"""Request fields that other keys govern. Set as "sampling" they would go round the caps and the records."""


class Contradiction(msgspec.Struct, frozen=True):
    """Values that cannot hold together; ``keys`` are their paths, as they stand in files."""

    keys: tuple[tuple[str, ...], ...]
    message: str


def contradictions(policy: Policy) -> Iterator[Contradiction]:
    """Every contradiction in ``policy``."""
    output = policy.output
    caps = ("tool_step", "final", "compaction", "title", "background", "default")
    for name in caps:
        cap = getattr(output, name)
        if cap is not None and cap < output.floor:
            yield Contradiction(
                (("output", name), ("output", "floor")),
                f"output.{name} ({cap}) is below output.floor ({output.floor}): no such turn could ever start",
            )
    ceiling = policy.context.ceiling_tokens
    if ceiling is not None and ceiling <= output.floor:
        yield Contradiction(
            (("context", "ceiling_tokens"), ("output", "floor")),
            f"context.ceiling_tokens ({ceiling}) leaves no room for a prompt beside output.floor ({output.floor})",
        )
    if output.thinking is not None:
        for name in ("tool_step", "final"):
            cap = getattr(output, name)
            if output.thinking >= cap:
                yield Contradiction(
                    (("output", "thinking"), ("output", name)),
                    f"output.thinking ({output.thinking}) uses up output.{name} ({cap}): no room for the answer itself",
                )
    yield from _compression(policy.compression)
    for name, value in policy.request.sampling.items():
        if name in GOVERNED_FIELDS:
            yield Contradiction(
                (("request", "sampling", name),), f"{name!r} is no sampling field: other keys of the policy govern it"
            )
        elif isinstance(value, float) and not math.isfinite(value):
            yield Contradiction((("request", "sampling", name),), f"{value} cannot be sent in a request")


def _compression(it: CompressionPolicy) -> Iterator[Contradiction]:
    """Only sizes of one measure can be compared here; a share and a number of tokens depend on the window."""
    for smaller, larger, why in (
        ("target", "trigger", "it would be due again at once"),
        ("gain", "trigger", "no prompt at its trigger could free so much"),
        ("recent", "target", "nothing could be left out before the target is met"),
        ("oversized", "target", "one result alone would fill what the target leaves"),
    ):
        low, high = getattr(it, smaller), getattr(it, larger)
        if is_share(low) == is_share(high) and low >= high:
            yield Contradiction(
                (("compression", smaller), ("compression", larger)),
                f"compression.{smaller} ({low:g}) is not below compression.{larger} ({high:g}): {why}",
            )
    if (
        is_share(it.target) == is_share(it.trigger) == is_share(it.gain)
        and it.target < it.trigger < it.target + it.gain
    ):
        yield Contradiction(
            (("compression", "gain"), ("compression", "target"), ("compression", "trigger")),
            f"compression.gain ({it.gain:g}) is more than lies between compression.trigger ({it.trigger:g}) and "
            f"compression.target ({it.target:g})",
        )
    if it.trim_target_tokens >= it.trim_over_tokens:
        yield Contradiction(
            (("compression", "trim_target_tokens"), ("compression", "trim_over_tokens")),
            f"compression.trim_target_tokens ({it.trim_target_tokens}) is not below compression.trim_over_tokens "
            f"({it.trim_over_tokens}): a trimmed result would be trimmed again",
        )
    if it.recall_tool and it.mode is not CompressionMode.ENFORCE:
        yield Contradiction(
            (("compression", "recall_tool"), ("compression", "mode")),
            f'compression.recall_tool needs compression.mode = "enforce", not "{it.mode}": nothing else takes '
            "anything out of a prompt that could be recalled",
        )
    if len(set(it.stages)) != len(it.stages):
        yield Contradiction((("compression", "stages"),), "compression.stages names a stage twice")


def is_share(value: ShareOrTokens) -> bool:
    """Whether the value is a share of the window, not tokens."""
    return value <= 1

"""Guaranteed floors: whether what is promised to all agents together is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from governor.types import AgentName


def overdrawn(floors: Mapping[AgentName, int], capacity_tokens: int | None) -> str | None:
    """The arithmetic, if the floors (KV tokens by agent) exceed what the engine holds; ``None`` if they can all be kept
    or the engine does not tell what it holds."""
    total = sum(floors.values())
    if capacity_tokens is None or total <= capacity_tokens:
        return None
    ranked = sorted(floors.items(), key=lambda item: (-item[1], item[0]))
    terms = " + ".join(f"{tokens:,} ({name})" for name, tokens in ranked if tokens)
    return (
        f"the guaranteed floors are {terms} = {total:,} KV tokens, {total - capacity_tokens:,} more than the engine's"
        f" {capacity_tokens:,}; lower share.floor_tokens of these agents"
    )

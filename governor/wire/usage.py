"""Token usage as engines spell it, in the three dialects, turned into our :class:`~governor.types.Usage`."""

from __future__ import annotations

from typing import Any

import msgspec

from governor.types import Usage
from governor.wire.tiers import WireTiers


class WireUsage(msgspec.Struct):
    """Chat, Responses and Messages names side by side. ``Any``: a lying engine must not break the relay."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    reasoning_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: Any = None
    output_tokens_details: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None


def _count(value: Any) -> int | None:
    """A token count, or unknown. Absent, null, negative and non-integers are all unknown, never zero."""
    return value if type(value) is int and value >= 0 else None


def _detail(details: Any, name: str) -> int | None:
    return _count(details.get(name)) if isinstance(details, dict) else None


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def to_usage(wire: WireUsage, tiers: WireTiers | None = None) -> Usage:
    """Translate. In the Messages dialect ``input_tokens`` leaves out what came from the cache; we add it back."""
    anthropic_cached = _count(wire.cache_read_input_tokens)
    prompt = _count(wire.prompt_tokens)
    if prompt is None and (fresh := _count(wire.input_tokens)) is not None:
        prompt = fresh + (anthropic_cached or 0) + (_count(wire.cache_creation_input_tokens) or 0)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=_first(_count(wire.completion_tokens), _count(wire.output_tokens)),
        cached_tokens=_first(
            _detail(wire.prompt_tokens_details, "cached_tokens"),
            _detail(wire.input_tokens_details, "cached_tokens"),
            anthropic_cached,
        ),
        cached_device_tokens=_count(tiers.device) if tiers else None,
        cached_host_tokens=_count(tiers.host) if tiers else None,
        cached_storage_tokens=_count(tiers.storage) if tiers else None,
        reasoning_tokens=_first(
            _detail(wire.completion_tokens_details, "reasoning_tokens"),
            _detail(wire.output_tokens_details, "reasoning_tokens"),
            _count(wire.reasoning_tokens),
        ),
    )


def merged(earlier: Usage, later: Usage) -> Usage:
    """The later report wins figure by figure; reports are cumulative, so nothing is summed."""
    return Usage(**{name: _first(getattr(later, name), getattr(earlier, name)) for name in Usage.__struct_fields__})

"""Usage in three dialects; unknown is never zero."""

from __future__ import annotations

from typing import Any

import pytest

from governor.types import Usage
from governor.wire.tiers import WireTiers
from governor.wire.usage import WireUsage, merged, to_usage


@pytest.mark.parametrize(
    ("wire", "usage"),
    [
        ({}, Usage()),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(prompt_tokens=0, completion_tokens=0)),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}},
            Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=0),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(prompt_tokens=9)),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, Usage(reasoning_tokens=3)),
        ({"reasoning_tokens": 3}, Usage(reasoning_tokens=3)),
        (
            {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
            Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4),
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 10},
            Usage(prompt_tokens=55, cached_tokens=40),
        ),
    ],
)
def test_dialects(wire: dict[str, Any], usage: Usage) -> None:
    assert to_usage(WireUsage(**wire)) == usage


@pytest.mark.parametrize("odd", [-1, 1.5, "7", True, None, [], {}])
def test_odd_figures_are_unknown(odd: Any) -> None:
    wire = WireUsage(
        prompt_tokens=odd, completion_tokens=odd, prompt_tokens_details={"cached_tokens": odd}, reasoning_tokens=odd
    )
    assert to_usage(wire, WireTiers(device=odd, host=odd, storage=odd)) == Usage()


def test_tiers() -> None:
    usage = to_usage(WireUsage(prompt_tokens=9), WireTiers(device=5, host=0))
    assert (usage.cached_device_tokens, usage.cached_host_tokens, usage.cached_storage_tokens) == (5, 0, None)


def test_the_later_report_wins_figure_by_figure() -> None:
    earlier = Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=8)
    later = Usage(completion_tokens=6, cached_tokens=0)
    assert merged(earlier, later) == Usage(prompt_tokens=9, completion_tokens=6, cached_tokens=0)

"""W29 orphan-tool-result: wherever the cut comes to lie, a call keeps its results, directly after it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from bench.histories import asks, call, conversation, message, parallel_calls, prose, result, seeded, tool_chain
from governor.compress.limits import Limits
from governor.compress.messages import read_message
from governor.compress.plan import Plan
from governor.compress.validate import violations
from governor.policy.model import CompressionStage
from tests.compressing import FIXED_TOKENS, check, shorten, size_of
from tests.scenario import load_case

(VARIANT,) = load_case("W29").variants
assert VARIANT.request is not None
THE_CASE = [msgspec.json.encode(each) for each in VARIANT.request.body["messages"]]

SHAPES = {
    "the case": THE_CASE,
    "parallel calls": parallel_calls()[:58],
    "one id again and again": conversation(12),
    "one chain": tool_chain(12, size=10),
    "two users in a row": [
        raw
        for number in range(8)
        for raw in (
            message("user", prose(seeded(number), 40)),
            message("user", "and this"),
            asks(call("a", n=number), call("b", n=number)),
            result("b", prose(seeded(number), 300)),
            result("a", "ok"),
            message("assistant", "done"),
        )
    ],
}


@pytest.mark.parametrize("stages", [tuple(CompressionStage), (CompressionStage.DROP,)], ids=["all stages", "drop"])
@pytest.mark.parametrize("shape", SHAPES)
def test_W29_every_cut(shape: str, stages: Sequence[CompressionStage]) -> None:
    """The target is swept so that the cut lies behind every message once."""
    messages = SHAPES[shape]
    sizes = [size_of(raw) for raw in messages]
    total = FIXED_TOKENS + sum(sizes)
    gone, cuts = 0, set()
    for index, size in enumerate(sizes):
        gone += size
        for target in {total - gone, total - gone + size // 2}:
            limits = Limits(
                trigger_tokens=1, target_tokens=max(1, target), gain_tokens=1, recent_tokens=0, oversized_tokens=total
            )
            made = shorten(messages, limits, stages=stages)
            if isinstance(made, Plan):
                check(messages, made, limits)
                assert list(violations(map(read_message, made.messages))) == []
                cuts.add(made.covered)
        assert index < len(messages)
    assert len(cuts) >= 2

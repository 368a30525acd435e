"""What planning costs: linear work, which is counted and not timed, since machines are busy; bounded memory."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.histories import SHAPES, asks, call, listing, log, message, result, seeded, tiny_rounds, tool_chain
from tests.compressing import limits_for, shorten

MOST_MEMORY = 3.0


def calls_made(messages: Sequence[bytes], target: float) -> int:
    """Calls of Python and C functions while planning."""
    count = 0

    def on_event(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    limits = limits_for(messages, target=target)
    sys.setprofile(on_event)
    try:
        shorten(messages, limits)
    finally:
        sys.setprofile(None)
    return count


def one_result(text: str) -> list[bytes]:
    return [message("user", "u"), asks(call("a")), result("a", text)]


@pytest.mark.parametrize("target", [0.5, 0.2])
@pytest.mark.parametrize(
    "grown",
    [
        lambda factor: tiny_rounds(100 * factor),
        lambda factor: tool_chain(20 * factor),
        lambda factor: tool_chain(20, size=60 * factor),
        lambda factor: one_result(log(seeded(1), 500 * factor)),
        lambda factor: one_result(listing(seeded(1), 300 * factor)),
        lambda factor: one_result("error " * 3000 * factor),
        lambda factor: (
            [message("user", "u"), asks(*(call(f"c{n}") for n in range(50 * factor)))]
            + [result(f"c{n}", log(seeded(n), 12)) for n in reversed(range(50 * factor))]
        ),
    ],
    ids=["rounds", "calls", "large results", "one log", "one list", "one line", "parallel calls"],
)
def test_four_times_the_history_is_at_most_four_times_the_work(
    grown: Callable[[int], list[bytes]], target: float
) -> None:
    small, large = grown(1), grown(4)
    assert calls_made(large, target) <= 4.5 * calls_made(small, target)


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_stays_within_three_times_the_messages(shape: str) -> None:
    messages = SHAPES[shape]()
    limits = limits_for(messages, target=0.3)
    tracemalloc.start()
    try:
        shorten(messages, limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MOST_MEMORY * sum(map(len, messages))

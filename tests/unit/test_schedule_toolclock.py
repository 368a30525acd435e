"""Tool times: learned by agent and tool, and what is said of those who have not come back."""

from __future__ import annotations

import math

import pytest

from governor.schedule.toolclock import ENOUGH, LONGEST_S, MOST_PAIRS, Returns, ToolClock
from governor.types import AgentName

ALICE, BOB = AgentName("alice"), AgentName("bob")


def taught(*seconds: float, agent: AgentName = ALICE, tool: str = "bash") -> ToolClock:
    clock = ToolClock()
    for each in seconds:
        clock.on_return(agent, tool, each)
    return clock


def known(clock: ToolClock, agent: AgentName = ALICE, tool: str = "bash") -> Returns:
    returns = clock.expected(agent, tool)
    assert returns is not None
    return returns


def test_nothing_is_said_before_enough_was_seen() -> None:
    clock = taught(*[3.0] * (ENOUGH - 1))
    assert clock.expected(ALICE, "bash") is None
    clock.on_return(ALICE, "bash", 3.0)
    assert known(clock).quantile(0.5) == pytest.approx(3.0, rel=0.15)
    assert clock.expected(ALICE, "") is None


def test_quantiles_are_those_of_what_was_seen() -> None:
    returns = known(taught(*[1.0, 2.0, 4.0, 8.0, 16.0] * 4))
    assert returns.quantile(0.1) == pytest.approx(1.0, rel=0.15)
    assert returns.quantile(0.5) == pytest.approx(4.0, rel=0.15)
    assert returns.quantile(0.95) == pytest.approx(16.0, rel=0.15)


def test_who_is_late_is_compared_with_those_that_were_late() -> None:
    returns = known(taught(*[1.0] * 15, *[100.0] * 5))
    assert returns.chance(0.0, 5.0) > 0.6
    assert returns.chance(5.0, 5.0) == 0.0
    assert returns.chance(5.0, 120.0) == pytest.approx(1.0)
    assert returns.quantile(0.5, beyond_s=5.0) == pytest.approx(100.0, rel=0.15)


def test_who_never_comes_back_counts() -> None:
    clock = taught(*[2.0] * 10)
    for _ in range(10):
        clock.on_given_up(ALICE, "bash")
    returns = known(clock)
    assert returns.chance(0.0, LONGEST_S) < 0.6
    assert returns.quantile(0.95) == math.inf


def test_what_has_changed_is_learned() -> None:
    clock = taught(*[1.0] * 200, *[60.0] * 60)
    assert known(clock).quantile(0.5) == pytest.approx(60.0, rel=0.15)


def test_a_tool_that_is_new_to_an_agent_takes_as_long_as_with_others() -> None:
    clock = taught(*[7.0] * 10)
    assert known(clock, BOB).quantile(0.5) == pytest.approx(7.0, rel=0.15)
    for _ in range(ENOUGH):
        clock.on_return(BOB, "bash", 70.0)
    assert known(clock, BOB).quantile(0.5) == pytest.approx(70.0, rel=0.15)
    assert known(clock).quantile(0.5) == pytest.approx(7.0, rel=0.15)


def test_names_without_end_take_no_memory_without_end() -> None:
    clock = ToolClock()
    for number in range(3 * MOST_PAIRS):
        clock.on_return(ALICE, f"tool-{number}" * 100, 1.0)
    assert len(clock) == MOST_PAIRS

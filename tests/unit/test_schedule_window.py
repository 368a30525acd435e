"""How many agents take part: when the window closes and opens, and who makes room in it."""

from __future__ import annotations

import pytest

from governor.schedule.window import IDLE_S, RESIDENCE_S, SETTLE_S, ActiveWindow
from governor.types import AgentName

ANN, BOB, CID, DAN, EVE = (AgentName(name) for name in ("ann", "bob", "cid", "dan", "eve"))
FOUR = (ANN, BOB, CID, DAN)


def busy(*agents: AgentName) -> ActiveWindow:
    """All of them run a turn."""
    window = ActiveWindow()
    for agent in agents:
        window.on_granted(agent, 0.0)
    return window


def closed(*agents: AgentName) -> ActiveWindow:
    """The same, after L1 was full and little came from cache: half as many may take part."""
    window = busy(*agents)
    window.on_seen(0.0, 1.0, 0.1)
    return window


def test_it_is_open_until_the_engine_serves_little_from_a_full_cache() -> None:
    window = busy(*FOUR)
    for occupancy, share in ((1.0, 0.9), (0.6, 0.1), (None, 0.1), (1.0, None), (0.8, 0.7)):
        window.on_seen(100.0, occupancy, share)
        assert window.size is None
        assert window.admits(EVE, 100.0)
    window.on_seen(100.0, 0.95, 0.5)
    assert window.size == 2


def test_members_stay_and_nobody_comes_in_addition() -> None:
    window = closed(*FOUR)
    assert all(window.admits(agent, 1.0) for agent in FOUR)
    assert not window.admits(EVE, 1.0)
    assert window.next_change(1.0) is None  # all of them run


def test_it_changes_only_after_the_last_change_has_shown() -> None:
    window = closed(*FOUR)
    window.on_seen(SETTLE_S - 1, 1.0, 0.1)
    assert window.size == 2
    window.on_seen(SETTLE_S, 1.0, 0.1)
    assert window.size == 1
    window.on_seen(2 * SETTLE_S, 1.0, 0.1)
    assert window.size == 1  # one agent always takes part


@pytest.mark.parametrize(("occupancy", "share"), [(1.0, 0.9), (0.5, 0.7)])
def test_it_opens_by_one_when_the_cache_serves_well(occupancy: float, share: float) -> None:
    window = closed(*FOUR)
    window.on_seen(SETTLE_S, occupancy, share)
    assert window.size == 3


def test_between_the_marks_nothing_changes() -> None:
    window = closed(*FOUR)
    window.on_seen(SETTLE_S, 0.8, 0.7)
    window.on_seen(SETTLE_S, 0.5, 0.1)  # few run now, and each computes its context again: that is not well
    assert window.size == 2


def test_a_window_that_nobody_fills_is_none() -> None:
    window = closed(ANN, BOB)
    for number in range(1, 4):
        assert window.size is not None
        window.on_seen(number * SETTLE_S, 0.1, 0.9)
        window.on_granted(ANN, number * SETTLE_S)
        window.on_granted(BOB, number * SETTLE_S)
    window.on_seen(4 * SETTLE_S, 0.1, 0.9)
    assert window.size is None


def test_an_agent_in_a_short_tool_call_keeps_its_place() -> None:
    window = closed(ANN, BOB)
    window.on_ended(ANN, 10.0)
    assert not window.admits(EVE, 10.0 + IDLE_S - 1)
    assert window.admits(ANN, 10.0 + IDLE_S - 1)


def test_one_that_has_been_idle_for_long_makes_room() -> None:
    window = closed(ANN, BOB)
    window.on_ended(ANN, 10.0)
    window.on_ended(BOB, 10.0)
    assert window.size == 1
    assert window.next_change(11.0) == 10.0 + IDLE_S
    assert window.admits(EVE, 10.0 + IDLE_S)
    window.on_granted(EVE, 10.0 + IDLE_S)
    assert window.members == 2


def test_after_its_residence_a_member_makes_room_with_its_first_pause() -> None:
    window = closed(ANN, BOB)
    assert not window.admits(EVE, RESIDENCE_S)  # it runs
    window.on_ended(BOB, RESIDENCE_S)
    assert window.admits(EVE, RESIDENCE_S)
    window.on_granted(EVE, RESIDENCE_S)
    assert not window.admits(BOB, RESIDENCE_S)  # ann runs, eve has just come

"""How many agents take part: when the window closes and opens, and who makes room in it."""

from __future__ import annotations

import pytest

from governor.schedule.window import (
    IDLE_S,
    OPENS_S,
    PROVEN_S,
    RESIDENCE_S,
    SETTLE_S,
    USELESS_S,
    ActiveWindow,
)
from governor.types import AgentName

ANN, BOB, CID, DAN, EVE = (AgentName(name) for name in ("ann", "bob", "cid", "dan", "eve"))
FOUR = (ANN, BOB, CID, DAN)


def busy(*agents: AgentName) -> ActiveWindow:
    """All of them run a turn."""
    window = ActiveWindow()
    for agent in agents:
        window.on_granted(agent, 0.0)
    return window


def closed() -> ActiveWindow:
    """Four run, L1 was full and little came from cache: two may take part."""
    window = busy(*FOUR)
    window.on_seen(0.0, 1.0, 0.1)
    return window


def fitting() -> ActiveWindow:
    """The same, after two have left with their turns' end."""
    window = closed()
    window.on_ended(CID, 1.0)
    window.on_ended(DAN, 1.0)
    return window


def test_it_is_open_until_the_engine_serves_little_while_l1_is_in_use() -> None:
    window = busy(*FOUR)
    for occupancy, share in ((1.0, 0.9), (0.4, 0.1), (None, 0.1), (1.0, None), (0.8, 0.7)):
        window.on_seen(100.0, occupancy, share)
        assert window.size is None
        assert window.admits(EVE, 100.0)
    window.on_seen(100.0, 0.9, 0.5)
    assert window.size == 2


def test_members_leave_with_their_turns_end_until_they_fit() -> None:
    window = closed()
    assert window.size == 2
    assert window.members == 4
    window.on_ended(ANN, 1.0)
    window.on_ended(BOB, 2.0)
    assert window.members == 2
    assert not window.admits(ANN, 3.0)
    window.on_ended(CID, 3.0)
    assert window.admits(CID, 4.0)


def test_a_member_with_another_turn_stays() -> None:
    window = closed()
    window.on_granted(ANN, 1.0)
    window.on_ended(ANN, 2.0)
    assert window.members == 4


def test_nobody_comes_in_addition() -> None:
    window = fitting()
    assert window.admits(ANN, 1.0)
    assert not window.admits(EVE, 1.0)
    assert window.next_change(1.0) == RESIDENCE_S


def test_it_changes_only_after_the_last_change_has_shown() -> None:
    window = fitting()
    window.on_seen(SETTLE_S - 1, 1.0, 0.1)
    assert window.size == 2
    window.on_seen(SETTLE_S, 1.0, 0.1)
    assert window.size == 1
    window.on_seen(2 * SETTLE_S, 1.0, 0.1)
    assert window.size == 1  # one agent always takes part


def test_it_opens_by_one_when_the_cache_serves_well() -> None:
    window = fitting()
    window.on_seen(OPENS_S - 1, 1.0, 0.95)
    assert window.size == 2
    window.on_seen(OPENS_S, 1.0, 0.95)
    assert window.size == 3
    assert window.admits(EVE, OPENS_S)


def test_between_the_marks_nothing_changes() -> None:
    window = fitting()
    window.on_seen(OPENS_S, 0.9, 0.7)
    window.on_seen(OPENS_S, 0.4, 0.1)  # few run now, and each computes its context again: that is not well
    assert window.size == 2


def test_a_window_that_nobody_fills_is_none() -> None:
    window = fitting()
    for number in range(1, 4):
        window.on_seen(number * OPENS_S, 0.9, 0.95)
    assert window.size is None


@pytest.mark.parametrize(("share", "is_open"), [(0.0, True), (0.5, False)])
def test_a_cache_that_serves_one_agent_nothing_either_does_not_work(share: float, is_open: bool) -> None:
    window = fitting()
    window.on_seen(SETTLE_S, 1.0, share)
    window.on_seen(SETTLE_S + PROVEN_S - 1, 1.0, share)
    assert window.size == 1
    window.on_seen(SETTLE_S + PROVEN_S, 1.0, share)
    assert (window.size is None) is is_open
    window.on_seen(SETTLE_S + PROVEN_S + USELESS_S - 1, 1.0, share)
    assert (window.size is None) is is_open
    window.on_seen(SETTLE_S + PROVEN_S + USELESS_S, 1.0, share)
    assert window.size is not None


def test_an_agent_in_a_short_tool_call_keeps_its_place() -> None:
    window = fitting()
    window.on_ended(ANN, 10.0)
    assert not window.admits(EVE, 10.0 + IDLE_S - 1)
    assert window.admits(ANN, 10.0 + IDLE_S - 1)


def test_one_that_has_been_idle_for_long_makes_room() -> None:
    window = fitting()
    window.on_ended(ANN, 10.0)
    assert window.next_change(11.0) == 10.0 + IDLE_S
    assert window.admits(EVE, 10.0 + IDLE_S)
    window.on_granted(EVE, 10.0 + IDLE_S)
    assert window.members == 2
    assert not window.admits(ANN, 10.0 + IDLE_S)


def test_a_member_makes_room_after_its_residence_though_it_runs() -> None:
    window = fitting()
    assert not window.admits(EVE, RESIDENCE_S - 1)
    assert window.admits(EVE, RESIDENCE_S)
    window.on_granted(EVE, RESIDENCE_S)
    window.on_ended(ANN, RESIDENCE_S + 1)  # she has lost her place
    assert window.members == 2
    assert window.admits(BOB, RESIDENCE_S + 2)
    window.on_granted(CID, RESIDENCE_S + 2)  # in bob's place, who runs and has been in for as long
    assert not window.admits(ANN, RESIDENCE_S + 2)


def test_a_turn_from_before_it_lost_its_place_does_not_count() -> None:
    window = fitting()
    window.on_granted(EVE, RESIDENCE_S)  # in the place of ann, who runs
    window.on_ended(EVE, RESIDENCE_S + 1)
    window.on_granted(ANN, RESIDENCE_S + 1 + IDLE_S)  # in eve's
    window.on_ended(ANN, RESIDENCE_S + 2 + IDLE_S)
    window.on_ended(ANN, RESIDENCE_S + 3 + IDLE_S)
    assert window.admits(EVE, RESIDENCE_S + 3 + 2 * IDLE_S)

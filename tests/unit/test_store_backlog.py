"""What waits, what is given up when there is no room, and what is counted."""

from __future__ import annotations

from governor.store.backlog import Backlog, Entry
from governor.types import TurnState
from tests.store_records import closed, decided, opened


def shapes(entries: list[Entry]) -> list[tuple[str, bool, bool]]:
    """(turn, has its opening, has its ending)."""
    return [(entry.turn_id, entry.opened is not None, entry.closed is not None) for entry in entries]


def test_opening_and_ending_of_a_waiting_turn_are_one_entry_in_its_place() -> None:
    backlog = Backlog(10)
    backlog.add_opened(opened("a"))
    backlog.add_opened(opened("b"))
    backlog.add_closed(closed("a"))
    assert shapes(backlog.take(10)) == [("a", True, True), ("b", True, False)]
    assert len(backlog) == 0


def test_an_ending_whose_opening_was_taken_before_carries_it_again() -> None:
    backlog = Backlog(10)
    backlog.add_opened(opened("a"))
    assert shapes(backlog.take(10)) == [("a", True, False)]
    backlog.add_closed(closed("a"))
    assert shapes(backlog.take(10)) == [("a", True, True)]


def test_an_opening_that_comes_after_the_ending_joins_it() -> None:
    backlog = Backlog(10)
    backlog.add_closed(closed("a"))
    backlog.add_opened(opened("a"))
    assert shapes(backlog.take(10)) == [("a", True, True)]


def test_the_first_record_of_a_kind_stands_and_a_second_ending_is_an_anomaly() -> None:
    backlog = Backlog(10)
    backlog.add_opened(opened("a", agent="first"))
    backlog.add_opened(opened("a", agent="second"))
    backlog.add_closed(closed("a", TurnState.REFUSED))
    backlog.add_closed(closed("a", TurnState.OK))
    [entry] = backlog.take(10)
    assert entry.opened == opened("a", agent="first")
    assert entry.closed == closed("a", TurnState.REFUSED)
    assert (backlog.anomalies, backlog.dropped) == (1, 0)


def test_take_is_oldest_first_and_bounded() -> None:
    backlog = Backlog(10)
    for name in "abc":
        backlog.add_closed(closed(name))
    assert [entry.turn_id for entry in backlog.take(2)] == ["a", "b"]
    assert [entry.turn_id for entry in backlog.take(2)] == ["c"]


def test_when_full_a_new_opening_is_dropped_but_comes_back_with_its_ending() -> None:
    backlog = Backlog(2)
    for name in "abc":
        backlog.add_opened(opened(name))
    assert backlog.dropped == 1
    assert shapes(backlog.take(10)) == [("a", True, False), ("b", True, False)]
    backlog.add_closed(closed("c"))
    assert shapes(backlog.take(10)) == [("c", True, True)]


def test_when_full_an_ending_takes_the_place_of_the_newest_opening() -> None:
    backlog = Backlog(3)
    backlog.add_closed(closed("a"))
    backlog.add_opened(opened("b"))
    backlog.add_opened(opened("c"))
    backlog.add_closed(closed("d"))
    assert backlog.dropped == 1
    assert shapes(backlog.take(10)) == [("a", False, True), ("b", True, False), ("d", False, True)]


def test_when_full_of_endings_the_newest_is_dropped() -> None:
    backlog = Backlog(2)
    for name in "abc":
        backlog.add_closed(closed(name))
    assert backlog.dropped == 1
    assert [entry.turn_id for entry in backlog.take(10)] == ["a", "b"]


def test_when_full_the_ending_of_a_waiting_turn_needs_no_room() -> None:
    backlog = Backlog(2)
    backlog.add_opened(opened("a"))
    backlog.add_opened(opened("b"))
    backlog.add_closed(closed("a"))
    backlog.add_closed(closed("b"))
    assert backlog.dropped == 0
    assert shapes(backlog.take(10)) == [("a", True, True), ("b", True, True)]


def test_turns_that_never_end_do_not_pile_up() -> None:
    backlog = Backlog(3)
    for number in range(10):
        backlog.add_opened(opened(f"t{number}"))
        backlog.take(10)
    for number in range(10):
        backlog.add_closed(closed(f"t{number}"))
        [entry] = backlog.take(10)
        assert (entry.opened is not None) == (number >= 7)


def numbers(entries: list[Entry]) -> list[tuple[str, list[int]]]:
    """(turn, the numbers of its decisions)."""
    return [(entry.turn_id, [number for number, _ in entry.decided]) for entry in entries]


def test_decisions_travel_with_their_turn_and_are_numbered_in_the_order_given() -> None:
    backlog = Backlog(10)
    backlog.add_opened(opened("a"))
    backlog.add_decided(decided("a"))
    backlog.add_decided(decided("b"))
    backlog.add_closed(closed("a"))
    backlog.add_decided(decided("a"))
    taken = backlog.take(10)
    assert shapes(taken) == [("a", True, True), ("b", False, False)]
    assert numbers(taken) == [("a", [1, 3]), ("b", [2])]
    backlog.add_decided(decided("a"))
    assert numbers(backlog.take(10)) == [("a", [4])]


def test_an_ending_joins_decisions_that_wait_and_still_carries_the_opening_taken_before() -> None:
    backlog = Backlog(10)
    backlog.add_opened(opened("a"))
    backlog.take(10)
    backlog.add_decided(decided("a"))
    backlog.add_closed(closed("a"))
    taken = backlog.take(10)
    assert shapes(taken) == [("a", True, True)]
    assert numbers(taken) == [("a", [1])]


def test_when_full_decisions_are_dropped_and_make_place_for_endings() -> None:
    backlog = Backlog(2)
    backlog.add_decided(decided("a"))
    backlog.add_decided(decided("a"))
    backlog.add_decided(decided("a"))  # as many decisions as turns
    assert backlog.dropped == 1
    backlog.add_opened(opened("b"))
    backlog.add_closed(closed("b"))
    backlog.add_closed(closed("c"))
    assert backlog.dropped == 3
    backlog.add_decided(decided("d"))  # no turn more
    assert backlog.dropped == 4
    backlog.add_decided(decided("b"))
    assert numbers(backlog.take(10)) == [("b", [3]), ("c", [])]
    for _ in range(2):
        backlog.add_decided(decided("e"))
    assert backlog.dropped == 4

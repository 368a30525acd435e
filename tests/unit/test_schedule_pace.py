"""Whether the line moves by itself."""

from __future__ import annotations

from governor.schedule.pace import Pace
from governor.types import TurnId

A, B = TurnId("a"), TurnId("b")


def test_a_new_line_stands_still() -> None:
    pace = Pace()
    assert pace.stands_still(0.0, 4.0)
    assert pace.next_moment(0.0) is None


def test_it_moves_when_the_first_is_let_in_and_stands_still_after_a_while() -> None:
    pace = Pace()
    pace.on_first_granted(A, 10.0)
    assert not pace.stands_still(13.9, 4.0)
    assert pace.next_moment(13.9) == 14.0
    assert pace.stands_still(14.0, 4.0)
    assert pace.next_moment(14.0) is None


def test_one_that_somebody_was_paused_for_does_not_count() -> None:
    pace = Pace()
    pace.on_helped(A)
    pace.on_first_granted(A, 10.0)
    assert pace.stands_still(10.0, 4.0)
    pace.on_first_granted(B, 11.0)
    assert not pace.stands_still(12.0, 4.0)

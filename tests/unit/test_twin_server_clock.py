"""The twin's clock over a wall that a test moves."""

from __future__ import annotations

from math import inf, nan

import pytest

from serve.twin_server.clock import ScaledClock


class Wall:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_it_goes_faster_and_stands_still() -> None:
    wall = Wall()
    clock = ScaledClock(60, wall)
    assert clock.now == 0
    wall.now += 2
    assert (clock.now, clock.wall_s(30)) == (120, 0.5)
    clock.stop()
    wall.now += 100
    clock.stop()
    assert clock.now == 120
    clock.go()
    wall.now += 1
    clock.go()
    assert clock.now == 180


@pytest.mark.parametrize("speed", [0, -1, inf, nan])
def test_what_is_no_speed(speed: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ScaledClock(speed)

"""A day of eight agents is to be simulated in a minute on one core; here is a part of it."""

from __future__ import annotations

import pytest

from bench.twin_speed import OTHER, PARTS, a_day, measure

A_DAY_IN_A_MINUTE = 24 * 60


@pytest.mark.slow
@pytest.mark.parametrize("governed", [False, True])
def test_a_day_takes_less_than_a_minute_of_one_core(governed: bool) -> None:
    speed = measure(a_day(hours=6.0), "rx7900xtx-tp2", governed=governed)
    assert speed.simulated_s > 6 * 3600 - 300
    assert speed.requests > 200
    assert speed.ratio > A_DAY_IN_A_MINUTE
    assert sum(speed.shares.values()) == pytest.approx(1.0)
    assert speed.shares[OTHER] < 0.2
    assert max(speed.shares, key=lambda part: speed.shares[part]) in PARTS.values()

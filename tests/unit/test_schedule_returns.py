"""What a return costs, and how long an answer writes before it is paused."""

from __future__ import annotations

import pytest

from governor.schedule.returns import RETURNS, Returns


def test_the_policys_quantum_holds_until_somebody_has_come_back() -> None:
    assert Returns().quantum_s(15.0, 200_000) == 15.0


def test_cheap_returns_change_nothing() -> None:
    returns = Returns()
    returns.on_returned(1.0, 100_000)
    assert returns.quantum_s(15.0, 200_000) == 15.0


def test_dear_ones_make_it_longer_by_the_size_of_the_context() -> None:
    returns = Returns()
    returns.on_returned(60.0, 100_000)
    assert returns.quantum_s(15.0, 50_000) == pytest.approx(RETURNS * 30.0)
    assert returns.quantum_s(15.0, 1_000) == 15.0


def test_it_learns_and_forgets() -> None:
    returns = Returns()
    returns.on_returned(60.0, 100_000)
    for _ in range(20):
        returns.on_returned(0.5, 100_000)
    assert returns.quantum_s(15.0, 100_000) == 15.0

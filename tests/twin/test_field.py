"""The twin against the field: each published figure of the two machines, played on the whole engine model."""

from __future__ import annotations

import pytest

from serve.twin.machine import load_machine
from serve.twin.measured import TogetherRow, shipped_measured
from tests.twin.field import MACHINES, PAGE, Play, fits, in_page, plays

BOUND = 0.1
"""Relative."""
PLAYS = [play for name in MACHINES for play in plays(name)]
TOGETHER = [(name, row) for name in MACHINES for row in shipped_measured(name).together]


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: f"{play.machine}: {play.what}")
def test_the_twin_takes_as_long_as_the_machine(play: Play) -> None:
    found = play.residual()
    assert abs(found.error) <= BOUND, f"measured {found.measured:.4g}, twin {found.twin:.4g} ({found.error:+.1%})"


@pytest.mark.parametrize(("name", "row"), TOGETHER, ids=lambda value: getattr(value, "context", value))
def test_as_many_write_at_once(name: str, row: TogetherRow) -> None:
    assert fits(load_machine(name), row) == row.fits


def test_the_page_has_the_tables_of_today() -> None:
    page = PAGE.read_text("utf-8")
    assert page == in_page(page), "run: python -m tests.twin.field --write"

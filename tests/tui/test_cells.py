"""Cells: widths in terminal cells, whatever the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.tui.pictures import HOSTILE
from tui.cells import Cell, Column, Table, column_widths, external, fit, gap_of, joined, padded

COLUMNS = (Column(title="name", grows=True, least=8), Column(title="n", right=True), Column(title="why", grows=True))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_external_text_is_one_printable_line(text: str) -> None:
    shown = external(text).text
    assert shown == "" or shown.isprintable()
    assert len(shown) < 2_500


def test_external_text_that_prints_is_as_it_was() -> None:
    assert external("[/] \\[x [@click=app.quit]go[/]").text == "[/] \\[x [@click=app.quit]go[/]"


@given(st.text(max_size=40), st.integers(0, 30))
def test_padded_fills_exactly(text: str, width: int) -> None:
    shown = external(text).text
    assert cell_len(padded(shown, width)) == width
    assert cell_len(padded(shown, width, right=True)) == width
    assert cell_len(fit(shown, width)) <= width


def test_a_cut_is_marked() -> None:
    assert fit("policies", 8) == "policies"
    assert fit("policies", 5) == "poli…"
    assert fit("温温温", 4) == "温…"


@pytest.mark.parametrize("total", [40, 80, 109, 110, 200])
def test_columns_fit_while_the_least_ones_do(total: int) -> None:
    rows = ((Cell("a" * 300), Cell("1,234"), Cell("b" * 300)), (Cell("x"), Cell("1"), Cell("y")))
    widths = column_widths(Table(columns=COLUMNS, rows=rows, empty=""), total)
    assert sum(widths.values()) + 2 * gap_of(total) in {total, total - 1}
    assert widths[1] == 5


def test_growing_columns_take_no_more_than_they_need() -> None:
    rows = ((Cell("hermes"), Cell("1"), Cell("c" * 100)),)
    widths = column_widths(Table(columns=COLUMNS, rows=rows, empty=""), 80)
    assert widths == {0: 6, 1: 1, 2: 71}


def test_a_column_that_does_not_grow_is_bounded() -> None:
    table = Table(columns=(Column(title="state"),), rows=((Cell("z" * 300),),), empty="")
    assert column_widths(table, 80) == {0: 14}


def test_wide_columns_are_left_out_where_it_is_narrow() -> None:
    table = Table(columns=(Column(title="a"), Column(title="b", from_width=160)), rows=(), empty="")
    assert set(column_widths(table, 80)) == {0}
    assert set(column_widths(table, 160)) == {0, 1}


def test_the_last_cell_of_a_short_row_widens_no_column() -> None:
    rows = ((Cell("hermes"), Cell("a long notice that runs over the rest of the line")),)
    assert column_widths(Table(columns=COLUMNS, rows=rows, empty=""), 80)[1] == 1


def test_joined_cells_end_at_the_edge() -> None:
    assert joined([Cell("engine"), Cell(""), Cell("ready"), Cell("unreachable")], 20) == [
        Cell("engine"),
        Cell("ready"),
        Cell("unre…"),
    ]
    assert joined([Cell("governor"), Cell("x")], 8) == [Cell("governor")]

"""A run as lanes, as characters and as a plot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from governor.simulate.lanes import Phase, Span, lanes, phases, shares
from governor.simulate.picture import picture
from governor.simulate.plot import PlotUnavailable, plot
from governor.simulate.result import TurnEnd, WaitPlace
from tests.simulated import result, row, sample, wait

HELD, QUEUED, PREFILL, DECODE = Phase.HELD, Phase.QUEUED, Phase.PREFILL, Phase.DECODE


def test_a_turn_is_its_waits_and_the_work_between_them() -> None:
    turn = row("a", 10, 40, 100, waits=(wait(20, 5), wait(10, 8, WaitPlace.GOVERNOR), wait(60, 30, WaitPlace.GOVERNOR)))
    assert phases(turn) == [
        Span(10, 18, HELD), Span(18, 20, PREFILL), Span(20, 25, QUEUED), Span(25, 40, PREFILL), Span(40, 60, DECODE),
        Span(60, 90, HELD), Span(90, 100, DECODE),
    ]  # fmt: skip


def test_waits_outside_a_turn_or_within_each_other_are_cut() -> None:
    turn = row("a", 10, None, 30, waits=(wait(0, 12), wait(11, 4), wait(25, 500)))
    assert phases(turn) == [
        Span(10, 12, QUEUED), Span(12, 15, QUEUED), Span(15, 25, PREFILL), Span(25, 30, QUEUED)
    ]  # fmt: skip
    assert phases(row("a", 5, None, 5)) == []


def test_turns_that_overlap_lie_in_tracks_of_their_own() -> None:
    made = lanes(result(row("b", 0, 1, 10), row("a", 2, None, 4, end=TurnEnd.GAVE_UP), row("b", 5, 6, 8),
                        row("b", 10, 11, 12)))  # fmt: skip
    assert [lane.agent for lane in made] == ["a", "b"]
    assert [[span.start_s for span in track] for track in made[1].tracks] == [[0, 1, 10, 11], [5, 6]]
    assert (made[0].failed_s, made[1].failed_s) == ((4,), ())


def test_columns_share_time_among_phases() -> None:
    spans = [Span(0, 3, PREFILL), Span(3, 10, DECODE)]
    assert shares(spans, 0, 10, 2) == [{PREFILL: 3, DECODE: 2}, {DECODE: 5}]
    assert shares(spans, 0, 0, 2) == [{}, {}]
    seconds = sum(sum(column.values()) for column in shares(spans, 0, 10, 7))
    assert seconds == pytest.approx(10)


def test_the_picture_reads_without_colour() -> None:
    run = result(
        row("hog", 0, 20, 100),
        row("mail", 20, 80, 100, waits=(wait(20, 40),)),
        row("ops", 0, 50, 60, waits=(wait(0, 50, WaitPlace.GOVERNOR),)),
        row("ops", 70, None, 90, end=TurnEnd.GAVE_UP),
        row("tick", 11, 11, 12),
        samples=(sample(0, 1), sample(50, 500), sample(75, 1000)),
    )
    assert picture(run, 31).plain.splitlines() == [
        "hog       ▓▓▓▓████████████████",
        "mail      ····▒▒▒▒▒▒▒▒▓▓▓▓████",
        "ops       ░░░░░░░░░░██··▓▓▓▓✗·",
        "tick      ··▏·················",
        "L1 in use ▁▁▁▁▁▁▁▁▁▁▄▄▄▄▄█████",
        "          0   25s  50s   1m40s",
        "          ░ held  ▒ queued  ▓ prefill  █ decode  ▏ mostly idle  ✗ no answer",
    ]


def test_two_pictures_can_have_one_scale() -> None:
    assert picture(result(row("a", 0, 0, 49)), 31, until_s=100).plain.startswith(f"a{' ' * 9}{'█' * 10}{'·' * 10}")


def test_an_empty_run_is_an_empty_picture() -> None:
    assert "L1 in use" in picture(result(), 60).plain


RUN = result(
    row("hog", 0, 20, 100),
    row("ma$il$", 20, 80, 100, waits=(wait(20, 40), wait(85, 5, WaitPlace.GOVERNOR))),
    row("ma$il$", 50, None, 90, end=TurnEnd.GAVE_UP),
    samples=(sample(0, 1), sample(50, 500, 800)),
)


def test_a_plot_has_a_panel_a_run_with_agents_and_stalls(tmp_path: Path) -> None:
    one, two = tmp_path / "one.svg", tmp_path / "two.png"
    plot([("first", RUN)], one)
    plot([("first", RUN), ("second", result())], two)
    drawn = one.read_text()
    for text in ("first: t on m", "ma$il$", "longest stall 1m00s", "time (seconds)", "in the engine's queue"):
        assert f"<!-- {text} -->" in drawn
    png = two.read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    assert width == 1680
    assert 700 < height < 1400


def test_a_plot_that_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlotUnavailable, match=r"\.pdf, \.png, \.svg, not plot\.gif"):
        plot([("x", RUN)], tmp_path / "plot.gif")
    with pytest.raises(PlotUnavailable, match=r"cannot write .*No such file"):
        plot([("x", RUN)], tmp_path / "nowhere" / "plot.png")


def test_what_is_slow_to_load_is_loaded_late_and_matplotlib_missed_with_advice(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import governor.cli.replay
assert not {"matplotlib", "zmq"} & sys.modules.keys()
sys.modules["matplotlib"] = None
from governor.simulate.plot import PlotUnavailable, plot
try:
    plot([], Path(sys.argv[1]))
except PlotUnavailable as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.png")], capture_output=True, text=True, check=True
    )
    assert told.stdout == "plots need matplotlib: pip install matplotlib\n"

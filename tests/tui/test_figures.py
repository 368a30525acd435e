"""Figures as words, bars to scale, rates from snapshots."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from governor.snapshot import AgentView, TurnView
from tests.tui import pictures
from tests.tui.pictures import NOW
from tui.bars import cells_of, drawn
from tui.cells import Bar, Part, Tone
from tui.client import Loaded
from tui.figures import curve, duration, figure, latency, rate, ratio, share
from tui.picture import Picture, updated_by_all
from tui.rates import rates, sampled


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (9_999, "9,999"),
        (10_000, "10.0K"),
        (99_949, "99.9K"),
        (99_951, "100K"),
        (999_499, "999K"),
        (999_501, "1.00M"),
        (5_120_000, "5.12M"),
        (2_500_000_000_000, "2500G"),
    ],
)
def test_figure(value: int | None, shown: str) -> None:
    assert figure(value) == shown


def test_figure_of_which_a_part_is_unreported() -> None:
    assert figure(12_345, at_least=True) == "12.3K+"
    assert figure(None, at_least=True) == "-"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0s"), (0.9, "0s"), (99.9, "99s"), (320, "5m20"), (5999, "99m59"), (6000, "1h40"), (400_000, "4d")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_latency() -> None:
    assert [latency(ms) for ms in (None, 0.0, 480.0, 9_949.0, 48_200.0)] == ["-", "0.0s", "0.5s", "9.9s", "48s"]


def test_share_rounds_to_neither_end() -> None:
    assert [share(None, 10), share(5, None), share(0, 0), share(0, 10), share(9, 10)] == ["-", "-", "-", "0%", "90%"]
    assert [share(9_999, 10_000), share(1, 10_000), share(10, 10)] == ["99%", "<1%", "100%"]


def test_rate_and_ratio() -> None:
    assert [rate(None), rate(0.0), rate(1.24), rate(12_345.0)] == ["-", "~0", "~1.2", "~12.3K"]
    assert [ratio(None), ratio(0.0), ratio(3.14), ratio(250.0)] == ["-", "x0.0", "x3.1", "x250"]


def test_curve() -> None:
    assert curve([]) == ""
    assert curve([0, 0]) == "▁▁"
    assert curve([0, 4, None, 8]) == "▁▄ █"
    assert curve([1, 2], top=16) == "▁▁"


@given(st.lists(st.integers(0, 10**9), max_size=9), st.integers(0, 10**9), st.integers(0, 300))
def test_a_bar_fills_its_width_and_shows_each_part(amounts: list[int], rest: int, width: int) -> None:
    parts = tuple(Part(amount, Tone.L1, label="温x") for amount in amounts)
    for labelled in (False, True):
        bar = Bar(parts, whole=sum(amounts) + rest, labelled=labelled, mark=None if labelled else 5)
        assert sum(cell_len(piece.text) for piece in drawn(bar, width)) == width
    cells = cells_of(amounts, sum(amounts) + rest, width)
    if sum(1 for amount in amounts if amount) <= width:
        assert all((count > 0) == (amount > 0) for count, amount in zip(cells, amounts, strict=True))


def test_a_bar_is_to_scale() -> None:
    assert cells_of([50, 25, 25], 100, 20) == [10, 5, 5]
    assert cells_of([1, 999], 1_000, 10) == [1, 9]
    assert [piece.text for piece in drawn(Bar((Part(1, Tone.L1), Part(1, Tone.L2, "▓")), whole=4), 8)] == [
        "██",
        "▓▓",
        "    ",
    ]


def test_the_mark_of_a_bar() -> None:
    bar = Bar((Part(4, Tone.L1),), whole=10, mark=6, rest="░")
    assert "".join(piece.text for piece in drawn(bar, 10)) == "████░░│░░░"


def written(at: float, completion: int, sent: int = 0, prompt: int = 0) -> Loaded:
    """A snapshot after so many tokens of ended turns and bytes of an open one."""
    turn = TurnView(turn_id="t", agent="a", route="/", phase="decode", since=NOW, generated_bytes=sent)
    view = AgentView(name="a", completion_tokens=completion, prompt_tokens=prompt)
    return Loaded(pictures.snapshot(now=at, agents=(view,), turns=(turn,) if sent else ()))


def test_rates_count_open_turns_and_are_never_negative() -> None:
    told = [written(NOW, 0), written(NOW + 1, 0, 400), written(NOW + 2, 0, 800), written(NOW + 3, 150, prompt=3_000)]
    found = rates(updated_by_all(Picture(), told).samples, 8)
    assert found.written == 50.0
    assert found.read == 1_000.0
    assert found.curve == (100.0, 100.0, 0.0), "the end replaces the estimate"


def test_rates_of_a_governor_that_was_started_anew() -> None:
    """Case W70: counters that begin again at 0 make no negative rate."""
    before = updated_by_all(Picture(), [written(NOW, 5_000), written(NOW + 1, 6_000)])
    anew = Loaded(pictures.snapshot(now=NOW + 2, started_at=NOW + 1))
    after = updated_by_all(before, [anew])
    assert len(after.samples) == 1
    assert rates(after.samples, 8).written is None


def test_samples_are_bounded_and_apart() -> None:
    samples = sampled((), pictures.snapshot())
    assert sampled(samples, pictures.snapshot(now=NOW + 0.1)) is samples
    for number in range(500):
        samples = sampled(samples, pictures.snapshot(now=NOW + 2 * number))
    assert len(samples) < 100
    assert msgspec.structs.asdict(samples[-1])["at"] == NOW + 998

"""The figures of a run, against rows whose figures were worked out by hand."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from governor.simulate.report import Report, longest_stall, percentile, report
from governor.simulate.result import CompactionEnd, CompactionRow, TurnEnd, WaitPlace
from governor.simulate.table import comparison, duration, tables
from governor.types import AgentName
from tests.simulated import result, row, sample, stay, wait

GOVERNOR = WaitPlace.GOVERNOR


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([3.0], 99, 3.0), ([4.0, 1.0, 3.0, 2.0], 50, 2.0), ([*map(float, range(1, 101))], 99, 99.0)],
)
def test_percentiles_are_of_the_nearest_rank(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_times_waits_and_tokens_of_each_agent_and_of_all() -> None:
    run = result(
        row("a", 0, 2, 5, prompt_tokens=100, new_tokens=100, output_tokens=10),
        row("b", 1, 11, 12, prompt_tokens=50, new_tokens=20, cached_device=20, reprefilled_tokens=10, output_tokens=5,
            waits=(wait(1, 8, GOVERNOR, "no lease", "a"), wait(9, 1)), slices=(stay(9, 10), stay(11, 12)),
            retractions=2),
        row("a", 6, 7, 20, prompt_tokens=115, new_tokens=5, cached_device=64, cached_host=40, cached_storage=6,
            output_tokens=30, waits=(wait(6, 0.5),)),
        samples=(
            sample(0, 400, l1_slots=10), sample(5, 900, 1000, running=2, l1_used_slots=7, l1_slots=5),
            sample(20, 100, 995, waiting=3, l1_slots=5),
        ),
    )  # fmt: skip
    made = report(run, "mine")
    assert [each.agent for each in made.agents] == ["a", "b"]
    a, b = made.agents[0], made.agents[1]
    assert (a.turns, a.good, a.ttft_p50_s, a.ttft_p99_s, a.ttft_max_s, a.ended_s) == (2, 2, 1, 2, 2, 20)
    assert (b.pauses, b.retractions, b.ends) == (1, 2, {TurnEnd.STOP: 1})
    assert (b.waits.governor_s, b.waits.engine_s, b.waits.longest_s, b.waits.turns) == (8, 1, 8, 1)
    assert list(b.waits.reasons) == [("no lease", 8.0), ("full", 1.0)]
    everybody = made.all.tokens
    assert (everybody.prompt, everybody.new, everybody.output) == (265, 125, 45)
    assert (everybody.cached_device, everybody.cached_host, everybody.cached_storage) == (84, 40, 6)
    assert everybody.prefilled == 135
    assert everybody.prefill_ratio == 135 / 125
    assert made.makespan_s == 20
    assert made.output_per_s == 45 / 20
    assert made.prefilled_per_s == 135 / 20
    assert made.engine.l1_peak_share == 0.9
    assert made.engine.l1_full_time_share == 0.75
    assert made.engine.slots_peak_share == 0.7
    assert made.engine.slots_full_time_share == 0.25
    assert (made.engine.running_peak, made.engine.waiting_peak) == (2, 3)


def test_a_stall_goes_on_through_retries_until_a_token_comes() -> None:
    stall = longest_stall([
        row("a", 0, 1, 4),
        row("a", 10, None, 310, end=TurnEnd.GAVE_UP, waits=(wait(10, 300, GOVERNOR, "held", "hog"),)),
        row("a", 312, None, 612, end=TurnEnd.GAVE_UP, attempt=2, asked_s=10),
        row("a", 616, 640, 650, attempt=3, asked_s=10, waits=(wait(616, 20),)),
        row("a", 700, 900, 901, waits=(wait(700, 500, reason="another"),)),
    ])  # fmt: skip
    assert stall is not None
    assert (stall.at_s, stall.seconds, stall.turn_id) == (10, 630, "a@616")
    assert (stall.before_first_token, stall.reason, stall.behind) == (True, "held", ("hog",))


def test_silence_inside_an_answer_is_a_stall() -> None:
    stall = longest_stall([
        row("a", 0, 5, 100, longest_silence_s=60, waits=(wait(0, 4, reason="queue"), wait(20, 55, reason="paused"))),
        row("a", 101, 103, 110, attempt=2, waits=(wait(101, 70),)),
    ])  # fmt: skip
    assert stall is not None
    assert (stall.seconds, stall.before_first_token, stall.reason, stall.at_s) == (60, False, "paused", 20)


def test_a_turn_without_any_token_stalls_to_its_end_and_sessions_do_not_mix() -> None:
    refused = row("a", 5, None, 25, admitted_s=None, granted_s=None, end=TurnEnd.REFUSED, new_tokens=7)
    made = report(result(refused, row("a", 26, 27, 28, session="other", attempt=2)), "x")
    stall = made.all.stall
    assert stall is not None
    assert (stall.seconds, stall.reason) == (20, "")
    assert (made.all.tokens.new, made.all.good, made.all.retries) == (0, 1, 1)


def test_nothing_at_all_is_unknown() -> None:
    made = report(result(), "empty")
    assert made.agents == ()
    assert [made.all.ttft_p50_s, made.all.stall, made.output_per_s, made.engine.l1_peak_share] == [None] * 4
    assert made.all.tokens.prefill_ratio is None
    assert "all done after" in shown(made)


def test_a_report_is_json_and_back() -> None:
    made = report(result(row("a", 0, 1, 2)), "x")
    assert msgspec.json.decode(msgspec.json.encode(made), type=Report) == made


def shown(*runs: Report) -> str:
    console = Console(width=200, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as capture:
        console.print(tables(runs[0]) if len(runs) == 1 else comparison(runs[0], runs[1:]))
    return capture.get()


def test_tables_say_who_stood_still_and_why() -> None:
    vain = CompactionRow(
        at_s=1, agent=AgentName("a"), session="s", before_tokens=9, after_tokens=9, threshold_tokens=8,
        end=CompactionEnd.SUMMARY,
    )  # fmt: skip
    text = shown(
        report(result(row("a", 0, 2941, 3000, waits=(wait(0, 2930, GOVERNOR, "L1 is leased", "hog"),)),
                      row("b", 0, None, 9, end=TurnEnd.GAVE_UP), compactions=(vain,)), "[now]")
    )  # fmt: skip
    assert "[now]: t on the twin of m, seed 0" in text
    assert "a stood still for 49m01s before the first token" in text
    assert "L1 is leased, while hog ran" in text
    assert "a compacted 1 times, 1 of them in vain" in text
    assert "b: turns without a good end: 1 gave_up" in text


def test_runs_side_by_side_have_ratios() -> None:
    before = report(result(row("a", 0, 100, 200, output_tokens=50), row("b", 0, 1, 2)), "before")
    after = report(result(row("a", 0, 25, 100, output_tokens=50)), "after")
    lines = shown(before, after).splitlines()
    [p50] = [line.split() for line in lines if line.startswith("a ") and "first token p50" in line]
    assert p50[-3:] == ["1m40s", "25s", "x0.25"]
    assert any(line.split()[:3] == ["b", "first", "token"] and "-" in line for line in lines)
    assert any("written a second" in line and "x2.00" in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (0.214, "0.21s"), (48.2, "48s"), (59.7, "60s"), (2952, "49m12s"), (11_100, "3h05m")],
)
def test_durations_are_for_people(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text

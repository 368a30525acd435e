"""Comparing: what is refused and why, and what is called a difference."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from governor.measure import Result, read_result, write_result
from governor.measure.compare import Verdict, compare
from governor.measure.errors import MeasureFailed, NotComparable
from governor.measure.layout import markdown, sheets
from governor.measure.plot import PlotUnavailable, plots
from governor.measure.result import (
    SCHEMA_VERSION,
    Case,
    EngineFacts,
    Left,
    MachineFacts,
    Measure,
    Metric,
    Served,
    result_schema,
)
from governor.measure.stats import quantile

SCHEMA = Path(__file__).parents[2] / "docs" / "bench-result.schema.json"
replace = msgspec.structs.replace


def measure(case: Case, metric: Metric, *values: float) -> Measure:
    return Measure(
        case=case,
        metric=metric,
        better=metric.better,
        values=values,
        median=median(values),
        q1=quantile(values, 0.25),
        q3=quantile(values, 0.75),
        served=(Served(prompt_tokens=case.context_tokens, completion_tokens=1, cached_tokens=0),),
    )


def result(*measures: Measure, **more: Any) -> Result:
    given: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "suite": "tiers",
        "started_at": "2026-10-01 12:00:00",
        "took_s": 12.0,
        "governor_version": "0.1.0",
        "seed": "s",
        "repeats": 5,
        "protocol": {},
        "machine": MachineFacts(
            processor="P",
            cores=8,
            memory_gib=64,
            system="Linux 6",
            load_before=0.5,
            load_after=1.0,
            gpus=("card, 1, 2 MHz",),
        ),
        "engine": EngineFacts(
            kind="sglang",
            version="0.5.23",
            model="m",
            window_tokens=65_536,
            device_tokens=100_000,
            flags={"page_size": 64, "attention_backend": "triton"},
        ),
        "measures": measures,
    }
    return Result(**(given | more))


COLD = Case(name="cold", context_tokens=4096)
L1 = Case(name="L1", context_tokens=4096)
DECODE = Case(name="decode", context_tokens=4096, output_tokens=256)
OURS = result(
    measure(COLD, Metric.TTFT_S, 2.0, 2.1, 1.9, 2.05, 1.95),
    measure(L1, Metric.TTFT_S, 0.2, 0.21, 0.19, 0.2, 0.205),
    measure(DECODE, Metric.DECODE_RATE, 80, 81, 79, 80.5, 79.5),
)
THEIRS = result(
    measure(COLD, Metric.TTFT_S, 1.0, 1.1, 0.9, 1.05, 0.95),
    measure(L1, Metric.TTFT_S, 0.2, 0.205, 0.195, 0.21, 0.19),
    measure(DECODE, Metric.DECODE_RATE, 40, 41, 39, 40.5, 39.5),
    seed="another",
)


def test_ratios_and_verdicts() -> None:
    rows = {(str(row.case), row.metric): row for row in compare(OURS, THEIRS).rows}
    cold = rows["cold 4,096", Metric.TTFT_S]
    assert cold.ratio == pytest.approx(0.5)
    assert cold.low < 0.5 < cold.high
    assert cold.p == pytest.approx(2 / 252)
    assert cold.verdict is Verdict.BETTER
    assert rows["L1 4,096", Metric.TTFT_S].verdict is Verdict.NO_DIFFERENCE
    assert rows["decode 4,096", Metric.DECODE_RATE].verdict is Verdict.WORSE, "half of a rate is worse"


def test_three_values_each_say_nothing() -> None:
    few = [result(measure(COLD, Metric.TTFT_S, *values)) for values in ((2.0, 2.1, 1.9), (1.0, 1.1, 0.9))]
    [row] = compare(*few).rows
    assert row.verdict is Verdict.TOO_FEW


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"suite": "decode"}, "another suite: tiers and decode"),
        ({"protocol": {"output": "64"}}, "another choices: the suite's own and output 64"),
        ({"engine": {"version": "0.5.24"}}, "another engine's version: 0.5.23 and 0.5.24"),
        ({"engine": {"model": "n"}}, "another model: m and n"),
        ({"engine": {"model_hash": "sha256:1"}}, "another model's files: unknown and sha256:1"),
        ({"engine": {"device_tokens": 5}}, "another pool of L1: 100000 and 5"),
        ({"engine": {"flags": {"page_size": 1, "attention_backend": "triton"}}}, "page_size is 64 and 1"),
        ({"engine": {"flags": {"page_size": 64}}}, "attention_backend is triton and None"),
        ({"engine": {"speed": 60.0}}, "another twin's speed"),
        ({"machine": {"processor": "Q"}}, "another processor: P and Q"),
        ({"machine": {"gpus": ("other, 1, 2 MHz",)}}, "other GPUs"),
        ({"machine": {"load_before": 9.0}}, "the second was measured on a busy machine"),
    ],
)
def test_what_is_not_comparable_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    fields = {name: replace(getattr(THEIRS, name), **value) if name in ("engine", "machine") else value
              for name, value in change.items()}  # fmt: skip
    other = replace(THEIRS, **fields)
    with pytest.raises(NotComparable) as refused:
        compare(OURS, other)
    assert reason in str(refused.value)
    comparison = compare(OURS, other, anyway=True)
    assert any(reason in difference for difference in comparison.differences)
    assert comparison.rows


def test_clocks_and_seeds_do_not_matter() -> None:
    machine = replace(THEIRS.machine, gpus=("card, 1, 999 MHz",))
    assert compare(OURS, replace(THEIRS, machine=machine, seed="x")).differences == ()


def test_nothing_in_common_is_nothing_to_compare() -> None:
    with pytest.raises(NotComparable, match="no figure in common"):
        compare(result(OURS.measures[0]), result(OURS.measures[1]), anyway=True)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_result(OURS, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == OURS


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{}", "schema_version"), (b"[", "is no result"), (b'{"schema_version": 1, "suite": 3}', "suite")],
)
def test_what_is_no_result_is_said_with_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(MeasureFailed, match=said) as failed:
        read_result(tmp_path / "x.json")
    assert "x.json" in str(failed.value)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    write_result(replace(OURS, schema_version=99), tmp_path / "x.json")
    with pytest.raises(MeasureFailed, match="schema 99"):
        read_result(tmp_path / "x.json")


def test_the_documented_schema_is_the_types() -> None:
    assert SCHEMA.read_bytes() == result_schema(), "python -m governor.measure.schema > docs/bench-result.schema.json"


def test_the_markdown_has_every_figure_and_what_was_left_out() -> None:
    page = markdown(
        replace(
            OURS,
            thrown=(Left(what="cold 4,096", reason="64 tokens | cached"),),
            skipped=(Left(what="L3", reason="there is none"),),
            notes=("a note",),
            is_complete=False,
        )
    )
    assert "| context | cold | L1 |" in page
    assert "| 4,096 | 2 (1.95 to 2.05) | 0.2 (0.2 to 0.205) |" in page
    assert "80 (79.5 to 80.5)" in page, "what no layout has is listed"
    for said in ("Interrupted", "64 tokens", "* L3: there is none", "* a note", "page_size=64", "card, 1, 2 MHz"):
        assert said in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines[:3]}) == 1


def test_every_figure_is_in_a_sheet() -> None:
    titles = [sheet.title for sheet in sheets("tiers", OURS.measures)]
    assert titles == ["Time to the first token, s", "Further figures"]
    assert [sheet.title for sheet in sheets("soak", OURS.measures)] == ["Figures"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_of_each_metric(tmp_path: Path, suffix: str) -> None:
    further = replace(COLD, context_tokens=65_536)
    made = plots(result(*OURS.measures, measure(further, Metric.TTFT_S, 50, 51)), tmp_path, suffix)
    assert [path.name for path in made] == [f"tiers-ttft_s{suffix}"]
    head = made[0].read_bytes()[:400]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in head or b"<?xml" in head


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlotUnavailable, match="ending in"):
        plots(OURS, tmp_path, ".gif")

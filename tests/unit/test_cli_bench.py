"""``governor bench`` as a person uses it: a program's twin, files, tables, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from governor.cli.bench import app
from governor.measure import read_result, write_result
from governor.measure.result import Metric
from governor.measure.suites import SUITES
from serve.launcher import free_port
from serve.twin.machine import load_machine
from tests.twin_server import TwinProgram


@pytest.fixture(scope="module")
def twin_url() -> Iterator[str]:
    with TwinProgram("--speed", "50") as program:
        program.wait_ready()
        yield program.url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def measured(url: str, folder: Path, *more: str) -> Result:
    small = ("--contexts", "512,1k", "--output", "32", "--repeats", "2", "--plot", "svg")
    return run("tiers", "--engine", url, "--out", str(folder), *small, *more)


@pytest.fixture(scope="module")
def first(twin_url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("bench") / "first"
    return folder, measured(twin_url, folder)


def test_a_suite_leaves_its_result_a_report_and_pictures(first: tuple[Path, Result]) -> None:
    folder, done = first
    assert done.exit_code == 0, done.output
    result = read_result(folder / "result.json")
    assert [each.case.context_tokens for each in result.measures if each.case.name == "L2"] == [512, 1024]
    assert all(len(each.values) == 2 for each in result.measures), result.thrown
    assert result.engine.speed == 50
    assert "twin of sglang-cpu" in result.engine.version
    assert result.is_complete
    assert "| 1,024 |" in (folder / "report.md").read_text()
    assert (folder / "tiers-ttft_s.svg").exists()
    assert "Time to the first token, s" in done.stdout
    assert "ran 50 times as fast" in done.stdout
    assert "[100%]" not in done.stdout, "steps are told on the error stream"


def test_times_of_a_fast_twin_are_the_engines(first: tuple[Path, Result]) -> None:
    """Not those of the wall, which are a fiftieth."""
    result = read_result(first[0] / "result.json")
    [cold] = [each for each in result.measures if str(each.case) == "cold 1,024" and each.metric is Metric.TTFT_S]
    assert cold.median > 0.9 * load_machine("sglang-cpu").cost.prefill_s(0, 1024)


def test_comparing_two_runs(first: tuple[Path, Result], twin_url: str, tmp_path: Path) -> None:
    assert measured(twin_url, tmp_path / "second", "--plot", "none").exit_code == 0
    quiet = []
    for place in (first[0], tmp_path / "second"):
        result = read_result(place / "result.json")  # what else runs on this machine is no business of this test
        machine = msgspec.structs.replace(result.machine, load_before=0.0)
        quiet.append(tmp_path / f"{place.name}.json")
        write_result(msgspec.structs.replace(result, machine=machine), quiet[-1])
    done = run("compare", *map(str, quiet))
    assert done.exit_code == 0, done.output
    assert "cold 512" in done.stdout
    assert "too few values" in done.stdout
    as_json = run("compare", *map(str, quiet), "--json")
    assert {row["verdict"] for row in msgspec.json.decode(as_json.stdout)["rows"]} == {"too few values"}


def test_what_is_not_comparable_is_refused_unless_told(first: tuple[Path, Result], tmp_path: Path) -> None:
    result = read_result(first[0] / "result.json")
    other = msgspec.structs.replace(result, engine=msgspec.structs.replace(result.engine, version="0.5.24"))
    write_result(other, tmp_path / "result.json")
    refused = run("compare", str(first[0]), str(tmp_path))
    assert refused.exit_code == 2
    assert "another engine's version" in refused.output
    assert "--anyway" in refused.output
    done = run("compare", str(first[0]), str(tmp_path), "--anyway")
    assert done.exit_code == 0
    assert "not the same: another engine's version" in done.stdout


def test_nobody_answers(tmp_path: Path) -> None:
    done = run("decode", "--engine", f"http://127.0.0.1:{free_port()}", "--out", str(tmp_path / "x"))
    assert done.exit_code == 6
    assert "does not answer" in done.output


@pytest.mark.parametrize("wrong", ["4096,x", "0", "", "4k,,"])
def test_wrong_numbers_are_named(wrong: str, tmp_path: Path) -> None:
    done = run("tiers", "--engine", "http://127.0.0.1:1", "--out", str(tmp_path / "x"), "--contexts", wrong or ",")
    assert done.exit_code == 2
    assert "numbers with commas" in done.output or "1 or more" in done.output


def test_each_suite_is_a_command_with_a_help() -> None:
    shown = run("--help").stdout
    assert all(name in shown for name in (*SUITES, "compare"))

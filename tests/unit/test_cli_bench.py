"""``governor bench`` as a person uses it: a program's twin, files, tables, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from governor.cli.bench import app
from governor.measure import read_result, write_result
from governor.measure.suites import SUITES
from serve.launcher import free_port
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


def test_a_suite_leaves_its_result_a_report_and_pictures(twin_url: str, tmp_path: Path) -> None:
    done = measured(twin_url, tmp_path / "a")
    assert done.exit_code == 0, done.output
    result = read_result(tmp_path / "a" / "result.json")
    assert [each.case.context_tokens for each in result.measures if each.case.name == "L2"] == [512, 1024]
    assert all(len(each.values) == 2 for each in result.measures), result.thrown
    assert result.engine.speed == 50
    assert "twin of sglang-cpu" in result.engine.version
    assert result.is_complete
    assert "| 1,024 |" in (tmp_path / "a" / "report.md").read_text()
    assert (tmp_path / "a" / "tiers-ttft_s.svg").exists()
    assert "Time to the first token, s" in done.stdout
    assert "ran 50 times as fast" in done.stdout
    assert "[100%]" not in done.stdout, "steps are told on the error stream"


def test_times_of_a_fast_twin_are_the_engines(twin_url: str, tmp_path: Path) -> None:
    """Cold prompts of 1,024 tokens take 0.4 s of the machine: not the 8 ms of the wall."""
    measured(twin_url, tmp_path)
    result = read_result(tmp_path / "result.json")
    [cold] = [each for each in result.measures if str(each.case) == "cold 1,024" and each.metric.value == "ttft_s"]
    assert 0.2 < cold.median < 5


def test_comparing_two_runs(twin_url: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert measured(twin_url, tmp_path / name, "--plot", "none").exit_code == 0
        path = tmp_path / name / "result.json"
        result = read_result(path)  # what else runs on this machine is no business of this test
        machine = msgspec.structs.replace(result.machine, load_before=0.0)
        write_result(msgspec.structs.replace(result, machine=machine), path)
    done = run("compare", str(tmp_path / "a"), str(tmp_path / "b" / "result.json"))
    assert done.exit_code == 0, done.output
    assert "cold 512" in done.stdout
    assert "too few values" in done.stdout
    as_json = run("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json")
    assert {row["verdict"] for row in msgspec.json.decode(as_json.stdout)["rows"]} == {"too few values"}


def test_what_is_not_comparable_is_refused_unless_told(twin_url: str, tmp_path: Path) -> None:
    measured(twin_url, tmp_path / "a")
    result = read_result(tmp_path / "a" / "result.json")
    other = msgspec.structs.replace(result, engine=msgspec.structs.replace(result.engine, version="0.5.24"))
    (tmp_path / "b").mkdir()
    write_result(other, tmp_path / "b" / "result.json")
    refused = run("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert refused.exit_code == 2
    assert "another engine's version" in refused.output
    assert "--anyway" in refused.output
    done = run("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--anyway")
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

"""``governor doctor`` on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from governor.cli.doctor import doctor
from serve.doctor import LocalSystem, probe_gpus

app = typer.Typer()
app.command()(doctor)


def run(home: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["--home", str(home), *args])


@pytest.fixture(scope="module")
def has_gpu() -> bool:
    return bool(probe_gpus(LocalSystem()).found)


def findings(done: Result, profile: str) -> dict[str, dict[str, Any]]:
    made = msgspec.json.decode(done.stdout)
    (result,) = [result for result in made["results"] if result["profile"] == profile]
    assert made["exit_code"] == done.exit_code
    return {finding["id"]: finding for finding in result["findings"]}


def test_without_a_gpu_it_says_so_and_checks_the_embedded_engine(tmp_path: Path, has_gpu: bool) -> None:
    if has_gpu:
        pytest.skip("this machine has a GPU")
    told = run(tmp_path)
    assert told.exit_code == 0
    assert "GPU      none" in told.stdout
    assert "profile embedded: nothing to mend" in told.stdout
    assert "there is no GPU on this machine" in told.stdout


def test_a_profile_for_gpus_is_an_error_without_them_and_the_embedded_one_is_checked_too(
    tmp_path: Path, has_gpu: bool
) -> None:
    if has_gpu:
        pytest.skip("this machine has a GPU")
    done = run(tmp_path, "-p", "rx7900xtx-tp2", "--json")
    assert done.exit_code == 2
    assert findings(done, "rx7900xtx-tp2")["no-gpu"]["severity"] == "error"
    assert findings(done, "embedded")["no-gpu"]["severity"] == "info"


def test_each_finding_has_its_reason_its_evidence_and_its_cure(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('base = "rx7900xtx-tp2"\n[hicache]\nio_backend = "kernel"\n[memory]\npage_size = 1\n')
    done = run(tmp_path, "-p", str(profile), "--json")
    told = findings(done, "mine")
    assert {"hybrid-kernel-io", "l3-page-of-one"} <= told.keys()
    for finding in told.values():
        assert all(finding[key] for key in ("what", "why", "evidence", "cure"))
    text = run(tmp_path, "-p", str(profile)).stdout
    assert "[hybrid-kernel-io]" in text
    assert "cure:" in text


def test_agents_of_the_home_are_weighed(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / "policies" / f"{name}.toml").write_text("[context]\nceiling_tokens = 131072\n")
    told = findings(run(tmp_path, "-p", "sglang-cpu", "--json"), "sglang-cpu")
    assert "Five agents at the ceiling need 655,360" in told["working-set-over-capacity"]["what"]


def test_a_model_nothing_is_known_of_is_told_and_the_rest_checked(tmp_path: Path) -> None:
    told = findings(run(tmp_path, "-p", "sglang-cpu", "--model", "who/what", "--json"), "sglang-cpu")
    assert "nothing is known of 'who/what'" in told["no-plan"]["what"]


def test_nothing_is_written(tmp_path: Path) -> None:
    run(tmp_path / "home", "-p", "rx7900xtx-tp2")
    assert not (tmp_path / "home").exists()


def test_an_upstream_has_no_machine(tmp_path: Path) -> None:
    assert "no-plan" not in findings(run(tmp_path, "-p", "upstream", "--json"), "upstream")
    assert run(tmp_path, "-p", "nosuch").exit_code == 2

"""``governor patch`` as it is typed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from governor.cli.patch import app
from tests.patch_sources import all_reduce, contents, model_config, model_folder, setup_script, source_tree


def governor_patch(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def as_json(*words: object) -> list[dict[str, Any]]:
    ran = governor_patch(*words, "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    answer: list[dict[str, Any]] = json.loads(ran.stdout)
    return answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return source_tree(tmp_path / "aot")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def test_list_says_what_each_finds(root: Path, model: Path) -> None:
    rows = {row["id"]: row for row in as_json("list", "--root", root, "--model", model, "--engine-version", "0.5.23")}

    assert {name: row["status"] for name, row in rows.items()} == {
        "gfx1100-kernel-build": "needed",
        "gfx1100-allreduce-store": "needed",
        "gfx1100-restrict-rank-data": "needed",
        "gptq-mtp-rules": "needed",
        "l3-prior-hash-chain": "fixed_upstream",
        "l3-re-anchor": "fixed_upstream",
    }
    assert "governor canary" in rows["l3-re-anchor"]["detail"]
    shown = governor_patch("list", "--root", root)
    assert shown.exit_code == 0
    assert "gfx1100-kernel-build: setup_rocm.py: gfx1100: it is not in the allowlist" in shown.stdout


def test_list_without_folders_says_what_it_needs() -> None:
    rows = {row["id"]: row for row in as_json("list")}

    assert rows["gptq-mtp-rules"]["status"] is None
    assert rows["gptq-mtp-rules"]["detail"] == "needs --model"
    assert rows["l3-re-anchor"]["status"] == "unknown_shape"
    assert governor_patch("list").exit_code == 0


def test_there_and_back(root: Path, model: Path) -> None:
    folders = ("--root", root, "--model", model)
    before = contents(root) | contents(model)
    assert governor_patch("verify", *folders).exit_code == 1

    applied = governor_patch("apply", *folders)
    assert applied.exit_code == 0
    assert "Build and install sgl_kernel again" in applied.stdout
    assert governor_patch("verify", *folders).exit_code == 0
    assert all(row["in_effect"] for row in as_json("verify", *folders))
    assert "nothing to do, applied" in governor_patch("apply", *folders).stdout

    assert governor_patch("revert", *folders).exit_code == 0
    assert contents(root) | contents(model) == before


def test_one_by_name(root: Path) -> None:
    rows = as_json("apply", "gfx1100-kernel-build", "--root", root)

    assert [(row["id"], row["status"], len(row["changed"])) for row in rows] == [("gfx1100-kernel-build", "applied", 1)]
    assert (root / "csrc/allreduce/custom_all_reduce.cuh").read_text() == all_reduce()


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the patch program")
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_dry_run_prints_a_diff_that_can_be_applied(tmp_path: Path, line_end: str) -> None:
    root = source_tree(tmp_path, all_reduce().replace("\n", line_end), setup_script().replace("\n", line_end).rstrip())
    before = contents(root)
    (row,) = as_json("apply", "gfx1100-kernel-build", "--root", root, "--dry-run")
    assert contents(root) == before
    assert row["status"] == "needed"

    subprocess.run(
        ["patch", "--binary", "setup_rocm.py"], input=row["diff"].encode(), cwd=root, check=True, capture_output=True
    )
    by_diff = (root / "setup_rocm.py").read_bytes()
    (root / "setup_rocm.py").write_bytes(before["setup_rocm.py"])
    governor_patch("apply", "gfx1100-kernel-build", "--root", root)

    assert (root / "setup_rocm.py").read_bytes() == by_diff


def test_a_dry_run_of_the_model_shows_the_two_rules_go(model: Path) -> None:
    shown = governor_patch("apply", "--model", model, "--dry-run").stdout

    assert '-      "+:.*mtp.*": {' in shown
    assert '+      "-:.*mtp.*": {' in shown
    assert (model / "config.json").read_text() == model_config()


def test_one_unknown_shape_stops_all(root: Path) -> None:
    (root / "setup_rocm.py").write_text("import os\n")
    before = contents(root)

    ran = governor_patch("apply", "--root", root)

    assert ran.exit_code == 6
    assert "setup_rocm.py is not touched: expected setup_rocm.py with an allowlist" in ran.stderr
    assert contents(root) == before


def test_revert_tells_of_a_change(root: Path) -> None:
    governor_patch("apply", "--root", root)
    script = root / "setup_rocm.py"
    script.write_text(script.read_text() + "# mine\n")

    ran = governor_patch("revert", "--root", root)

    assert ran.exit_code == 6
    assert "changed since it was patched" in ran.stderr
    assert script.read_text().endswith("# mine\n")
    assert "cannot be reverted" in governor_patch("verify", "--root", root).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("apply",), "give --root DIR, --model DIR, or both"),
        (("verify", "nothing-like-it"), "there is no patch 'nothing-like-it'"),
        (("revert", "gptq-mtp-rules"), "gptq-mtp-rules needs --model DIR"),
    ],
)
def test_usage(words: tuple[str, ...], said: str) -> None:
    ran = governor_patch(*words)

    assert ran.exit_code == 2
    assert said in ran.stderr

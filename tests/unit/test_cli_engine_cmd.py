"""``governor engine profiles`` and ``governor engine command``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from governor.cli.engine_cmd import app
from serve.profile import shipped_names


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"GOVERNOR_HOME": str(tmp_path)}


def test_profiles_are_listed(env: dict[str, str]) -> None:
    done = CliRunner().invoke(app, ["profiles", "--json"], env=env)
    assert [entry["name"] for entry in msgspec.json.decode(done.stdout)] == list(shipped_names())
    assert "rx7900xtx-tp2" in CliRunner().invoke(app, ["profiles"], env=env).stdout


def test_the_command_is_one_that_a_shell_takes(env: dict[str, str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["command", "-p", "rx7900xtx-tp2", "--model", "/my models/w"], env=env)
    assert done.exit_code == 0
    assert "python -m sglang.launch_server \\\n  --model-path '/my models/w' \\\n" in done.stdout
    assert f"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR={tmp_path}/l3/FINGERPRINT/pages" in done.stdout


def test_the_command_as_json_has_argv_env_and_notes(env: dict[str, str], tmp_path: Path) -> None:
    weights = tmp_path / "w"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    done = CliRunner().invoke(app, ["command", "-p", "rx7900xtx-tp2", "--model", str(weights), "--json"], env=env)
    made = msgspec.json.decode(done.stdout)
    assert made["argv"][made["argv"].index("--model-path") + 1] == str(weights)
    assert "FINGERPRINT" not in made["env"]["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"]
    assert made["parser_problem"] is None
    assert not (tmp_path / "l3").exists()


@pytest.mark.parametrize("name", ["embedded", "upstream"])
def test_engines_without_priorities_say_so(env: dict[str, str], name: str) -> None:
    made = msgspec.json.decode(CliRunner().invoke(app, ["command", "-p", name, "--json"], env=env).stdout)
    assert any("priority is inactive" in note["text"] for note in made["notes"])


def test_a_tier_is_left_out_of_the_command(env: dict[str, str]) -> None:
    done = CliRunner().invoke(app, ["command", "-p", "nvidia-single", "--without", "l3"], env=env)
    assert done.exit_code == 0
    assert "--enable-hierarchical-cache" in done.stdout
    assert "--hicache-storage" not in done.stdout
    assert "STORAGE_DIR" not in done.stdout
    both = ["--without", "l3", "--without", "l2"]
    done = CliRunner().invoke(app, ["command", "-p", "nvidia-single", *both], env=env)
    assert done.exit_code == 0
    assert "hicache" not in done.stdout.lower()


def test_two_profiles_are_compared(env: dict[str, str]) -> None:
    done = CliRunner().invoke(app, ["command", "--diff", "rtx4090-48g", "rtx5090-32g"], env=env)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["--- rtx4090-48g", "+++ rtx5090-32g"]
    assert "- --hicache-size 24" in lines
    assert "+ --mem-fraction-static 0.92" in lines


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["command"], 2, "give --profile P, or --diff P1 P2"),
        (["command", "-p", "rx7900xtx-tp2"], 6, "names no weights"),
        (["command", "-p", "nope"], 2, "there is no shipped profile"),
        (["command", "-p", "upstream", "--without", "l2"], 6, "--without l2: the tiers of a server"),
        (["command", "-p", "nvidia-tp2", "--version", "0.5.17"], 6, "not 0.5.17"),
        (["command", "-p", "nvidia-tp2", "--check", "--python", sys.executable], 6, "cannot be imported"),
    ],
)
def test_what_cannot_be_done_is_told(env: dict[str, str], arguments: list[str], code: int, says: str) -> None:
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exit_code == code
    assert says in done.stderr

"""The systemd unit: words survive, and systemd takes it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from governor.cli.app import app
from serve.systemd import governor_unit


def test_words_are_quoted_as_systemd_reads_them() -> None:
    argv = ("/usr/bin/python3", "-m", "governor", "--home", '/home/a b/100%"$HOME', "")
    unit = governor_unit(argv, what="100 % local", environment={"GOVERNOR_ENGINES": "/big $disk"})
    assert 'ExecStart=/usr/bin/python3 -m governor --home "/home/a b/100%%\\"$$HOME" ""\n' in unit
    assert "Description=100 %% local\n" in unit
    assert 'Environment="GOVERNOR_ENGINES=/big $disk"\n' in unit
    assert "KillMode=mixed\n" in unit


def test_the_command_prints_a_unit_for_the_profile(tmp_path: Path) -> None:
    words = ["engine", "systemd", "--profile", "sglang-cpu", "--home", str(tmp_path), "--up", "--port 9000"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert f"-m governor up --home {tmp_path} --profile sglang-cpu --port 9000\n" in result.stdout
    assert "WantedBy=default.target" in result.stdout


def test_an_unknown_profile_is_refused() -> None:
    assert CliRunner().invoke(app, ["engine", "systemd", "--profile", "sglang-cpuu"]).exit_code == 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_it(tmp_path: Path) -> None:
    unit = tmp_path / "governor.service"
    unit.write_text(governor_unit(("/bin/true", "a b%$'"), what="x", environment={"A": "b c"}))
    verify = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    checked = subprocess.run(verify, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr

"""``governor twin``: fitting a machine, listing and showing machines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from governor.cli.twin_cmd import app
from serve.twin.fit import fit
from serve.twin.machine import Machine, load_machine, machine_names
from serve.twin.measured import shipped_measured

SHIPPED = "rx7900xtx-tp2"


def twin(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    path.write_bytes(msgspec.json.encode(shipped_measured(SHIPPED)))
    return path


def test_fit_prints_the_residuals_and_writes_a_machine(rows: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.toml"
    result = twin("fit", str(rows), "--name", "mine", "--out", str(target))
    assert result.exit_code == 0, result.output
    assert "L2 hit, 65,536, s" in result.output
    assert "-0.7%" in result.output
    assert "assumed, not measured:" in result.output
    machine = load_machine(str(target))
    assert machine.name == "mine"
    assert machine.cost == fit(shipped_measured(SHIPPED)).cost


def test_fit_without_a_place_writes_here_and_replaces_nothing(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = twin("fit", str(rows), "--name", "mine")
    assert first.exit_code == 0, first.output
    assert "--profile twin:./mine.toml" in first.output
    again = twin("fit", str(rows), "--name", "mine")
    assert again.exit_code == 2
    assert "--out mine.toml" in again.output
    assert twin("fit", str(rows), "--name", "mine", "--out", "mine.toml").exit_code == 0


def test_fit_does_not_write_over_the_measurements(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_bytes(
        b'name = "box"\nsummary = ""\n[engine]\ncontext_tokens = 64\n[engine.tiers]\ndevice_tokens = 64\n'
        b"[[prefill]]\ncontext = 64\nseconds = 1\n[[decode]]\ncontext = 0\noutput = 1\nrate = 1\n"
    )
    before = path.read_bytes()
    result = twin("fit", str(path), "--out", str(path))
    assert result.exit_code == 2
    assert "another --out" in result.output
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "nowhere.toml"), "cannot be read"),
        (("show", "nowhere"), "There is no machine 'nowhere'"),
    ],
)
def test_errors_are_a_line_and_usage(arguments: tuple[str, ...], said: str) -> None:
    result = twin(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_machine_is_written_as_toml_only(rows: Path, tmp_path: Path) -> None:
    result = twin("fit", str(rows), "--out", str(tmp_path / "mine.json"))
    assert result.exit_code == 2
    assert "ends in .toml" in " ".join(result.output.split())


def test_a_name_is_one_that_fits_behind_twin(rows: Path) -> None:
    result = twin("fit", str(rows), "--name", "my/box")
    assert result.exit_code == 2
    assert "--name my/box" in result.output


def test_machines_lists_all() -> None:
    listed = twin("machines")
    assert listed.exit_code == 0, listed.output
    for name in machine_names():
        assert name in listed.output
    told = msgspec.json.decode(twin("machines", "--json").output)
    assert [each["name"] for each in told] == machine_names()


def test_show_tells_costs_residuals_and_assumptions() -> None:
    result = twin("show", SHIPPED)
    assert result.exit_code == 0, result.output
    for text in ("decode_kv_token_s", "231,872", "L1 hit, 65,536, s", "accept length 2.725"):
        assert text in result.output
    machine = msgspec.json.decode(twin("show", SHIPPED, "--json").output, type=Machine)
    assert machine == load_machine(SHIPPED)

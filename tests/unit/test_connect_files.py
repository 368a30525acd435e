"""A client's file is backed up for its owner only, and replaced whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from governor.connect import files
from governor.errors import ConfigError

NOW = 1_795_962_416.0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_backup_is_private_exact_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    first = files.back_up(path, "a: ü\r\n", NOW)
    second = files.back_up(path, "b", NOW)
    assert first.name.startswith("config.yaml.bak-")
    assert first.read_bytes() == "a: ü\r\n".encode()
    assert second.read_text() == "b"
    assert {mode(first), mode(second)} == {0o600}


def test_a_replaced_file_keeps_its_mode_and_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "config.yaml"
    link.symlink_to(real)
    files.replace(link, "old", "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert mode(real) == 0o640
    assert files.is_open_to_others(link)


def test_a_new_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "config.yaml"
    files.replace(path, "", "new")
    assert mode(path) == 0o600
    assert not files.is_open_to_others(path)


def test_a_file_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("theirs")
    with pytest.raises(ConfigError, match="changed by another program"):
        files.replace(path, "old", "new")
    assert path.read_text() == "theirs"


def test_a_backup_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        files.back_up(tmp_path / "none" / "config.yaml", "a", NOW)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        files.ensure_folder(tmp_path / "file" / "config.yaml")

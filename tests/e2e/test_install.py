"""The installer itself: built once, built again after a broken build or a changed lock, failures told in full."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.clients import install


class FakeBuild:
    """Makes what an installation consists of, or breaks off half-way."""

    def __init__(self, *, breaks_off: bool = False) -> None:
        self.breaks_off = breaks_off
        self.folders: list[Path] = []

    def __call__(self, folder: Path, say: install.Say) -> None:
        self.folders.append(folder)
        assert list(folder.iterdir()) == []
        (folder / "half").touch()
        if self.breaks_off:
            raise install.InstallFailed("broke off")
        python = install.python_of(folder)
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "lock.txt"
    path.write_text("one==1\n")
    return path


def test_built_once_and_reused(lock: Path) -> None:
    build, said = FakeBuild(), list[str]()
    first = install.ensure("thing", [lock], build, said.append)
    second = install.ensure("thing", [lock], build, said.append)
    assert first == second
    assert build.folders == [first]
    assert any("installing into" in line for line in said)


def test_changed_lock_builds_beside_the_old_one(lock: Path) -> None:
    build = FakeBuild()
    first = install.ensure("thing", [lock], build, print)
    lock.write_text("one==2\n")
    second = install.ensure("thing", [lock], build, print)
    assert first != second
    assert first.is_dir()


def test_broken_build_is_removed_and_done_again(lock: Path) -> None:
    with pytest.raises(install.InstallFailed):
        install.ensure("thing", [lock], FakeBuild(breaks_off=True), print)
    build = FakeBuild()
    install.ensure("thing", [lock], build, print)
    assert len(build.folders) == 1


def test_vanished_interpreter_builds_again(lock: Path) -> None:
    build = FakeBuild()
    folder = install.ensure("thing", [lock], build, print)
    install.python_of(folder).unlink()
    install.ensure("thing", [lock], build, print)
    assert len(build.folders) == 2


def test_failing_step_tells_command_and_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such package'); raise SystemExit(3)"]
    with pytest.raises(install.InstallFailed, match=r"exit 3 of: .*\n.*no such package"):
        install.run(command, tmp_path, print)

"""Reading, replacing and locking of small shared files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from governor.errors import ConfigError
from governor.files import SETTLED_S, Signature, locked, read_text, signature, write_atomic


def test_a_missing_file_is_no_error(tmp_path: Path) -> None:
    assert read_text(tmp_path / "none") is None
    assert signature(tmp_path / "none") is None
    (tmp_path / "file").write_text("x")
    assert read_text(tmp_path / "file" / "none") is None
    assert signature(tmp_path / "file" / "none") is None


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfhi\r\n")
    assert read_text(tmp_path / "a") == "hi\r\n"


def test_text_that_is_not_utf8_has_a_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n\xff\n")
    with pytest.raises(ConfigError, match=r"a:3: is not UTF-8") as caught:
        read_text(tmp_path / "a")
    assert caught.value.line == 3


def test_replacing_leaves_no_scratch_and_makes_folders_for_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    write_atomic(path, "one")
    first = signature(path)
    write_atomic(path, "two", mode=0o644)
    assert path.read_text() == "two"
    assert signature(path) != first
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["a"]


def test_a_failed_replacement_keeps_the_old_and_leaves_no_scratch(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_atomic(tmp_path / "folder", "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_held_lock_is_waited_for_and_then_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(path):
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    with pytest.raises(ConfigError, match="held by another program"), locked(path, timeout_s=0.05):
        pass
    release.set()
    with locked(path, timeout_s=5):
        pass
    thread.join()


def test_a_signature_settles() -> None:
    young = Signature(inode=1, mtime_ns=100_000_000_000)
    assert not young.is_settled(100.0)
    assert young.is_settled(100.001 + SETTLED_S)

"""What ``governor top`` does beside its dashboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, pathlib, sys
from governor.cli.top import _log_to_file
from governor.settings import Home
_log_to_file(Home(pathlib.Path(sys.argv[1])))
for number in range(int(sys.argv[2])):
    logging.getLogger("tui").error("panel cannot be drawn %s %d", "x" * 1000, number)
"""


def logged(home: Path, errors: int) -> list[Path]:
    """The log's files after so many errors, in a process of its own: the root logger is one for all tests."""
    (home / "logs").mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", PROGRAM, str(home), str(errors)], check=True)
    return sorted((home / "logs").iterdir())


def test_a_panel_that_fails_with_each_picture_does_not_fill_the_disk(tmp_path: Path) -> None:
    assert logged(tmp_path, 0) == [], "nothing is wrong, so there is no file"
    files = logged(tmp_path, 4_000)
    assert [file.name for file in files] == ["top.log", "top.log.1"]
    assert sum(file.stat().st_size for file in files) <= 2_000_000
    assert files[0].read_text().endswith(" 3999\n")

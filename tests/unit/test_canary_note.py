"""What the last canary found, between two processes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from governor.canary_note import CanaryNote, note_file, write_canary
from governor.settings import Home
from governor.snapshot import CanaryTierView, CanaryView

FOUND = CanaryView(at=1.0, passed=True, tiers=(CanaryTierView(tier="L2", verdict="SERVED"),))


def test_the_last_one_is_read(tmp_path: Path) -> None:
    home = Home(tmp_path)
    note = CanaryNote(home)
    assert note() is None
    write_canary(home, FOUND)
    assert note() == FOUND
    assert note() is note(), "a file that has not changed is not read again"
    later = CanaryView(at=2.0, passed=False, problems=("it fails",))
    write_canary(home, later)
    assert note() == later


def test_a_file_that_is_none_of_ours_is_told_of_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    note_file(home).write_text('{"at": "yesterday"}')
    with caplog.at_level(logging.WARNING):
        note = CanaryNote(home)
        assert note() is None
        assert note() is None
    assert len(caplog.records) == 1

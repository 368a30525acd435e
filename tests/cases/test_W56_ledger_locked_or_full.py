"""W56: the database is locked, full, read-only or damaged. Requests go on; rows come late or are counted as lost.

The case as seen by the gateway's end of the port: what a request calls must return at once whatever the disk does.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from governor.store.database import sqlite_url
from governor.store.model import StoreHealth
from governor.store.query import TurnLogReader
from governor.store.turnlog import SqlTurnLog
from governor.types import TurnState
from tests.ailing import every_sqlite_connection_runs, locked_by_another_process
from tests.store_records import closed, opened, turn_log

CALL_MOST_MS = 500
"""A call takes microseconds; the rest is what a busy machine may add. One wait for the database would be 1000."""


def turns_of_fifty_requests(log: SqlTurnLog, *, prefix: str = "t", reason: str | None = None) -> float:
    """Fifty turns from door to end; returns the longest single call in milliseconds."""
    moments = [time.perf_counter()]
    for number in range(50):
        turn_id = f"{prefix}{number:02}"
        log.opened(opened(turn_id))
        moments.append(time.perf_counter())
        log.closed(closed(turn_id, reason=reason))
        moments.append(time.perf_counter())
    return max(after - before for before, after in pairwise(moments)) * 1000


def rows_in_written_order(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT turn_id, state FROM turns ORDER BY rowid").fetchall()


def test_a_lock_held_for_long_delays_rows_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    told: list[StoreHealth] = []
    with turn_log(sqlite_url(path), on_health_change=told.append) as log:
        assert log.flush(10)
        with locked_by_another_process(path):
            longest = turns_of_fifty_requests(log)
            assert not log.flush(3)
            health = log.health()
            assert not health.ok
            assert "locked" in str(health.last_error)
            assert health.pending == 50
            assert rows_in_written_order(path) == []
        assert log.flush(10)
        health = log.health()
    assert (health.ok, health.pending, health.dropped, health.anomalies) == (True, 0, 0, 0)
    assert rows_in_written_order(path) == [(f"t{number:02}", "ok") for number in range(50)]
    assert longest < CALL_MOST_MS
    assert [one.ok for one in told] == [False, True]


@pytest.fixture
def one_megabyte_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB of our own, where we may mount one."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(volume)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        yield volume
    finally:
        subprocess.run(["umount", str(volume)], check=True)


def fill_until_rows_are_dropped(log: SqlTurnLog) -> float:
    """Turns with long reasons until the database takes no more and the backlog overflows; the longest call in ms."""
    longest = 0.0
    for batch in range(40):
        longest = max(longest, turns_of_fifty_requests(log, prefix=f"{batch:02}-", reason="x" * 2000))
        if log.health().dropped:
            return longest
        log.flush(0.2)
    pytest.fail("the disk never filled up")


def check_full(path: Path, log: SqlTurnLog, told: list[StoreHealth]) -> None:
    longest = fill_until_rows_are_dropped(log)
    assert longest < CALL_MOST_MS
    log.flush(0.3)
    health = log.health()
    assert not health.ok
    assert "full" in str(health.last_error)
    assert health.dropped > 0
    assert health.pending > 0
    deadline = time.monotonic() + 5
    while not (told and told[-1].dropped == health.dropped) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told[-1].dropped == health.dropped, "the owner is told how many are gone"
    assert rows_in_written_order(path)


def check_emptied(path: Path, log: SqlTurnLog) -> None:
    """Room again: what was kept is written, what was given up is not, and the sum is what was handed over."""
    handed_over = len(rows_in_written_order(path)) + log.health().pending
    assert log.flush(10)
    assert log.health().ok
    assert log.health().dropped > 0, "the count of lost rows does not fade"
    rows = rows_in_written_order(path)
    assert len(rows) == handed_over
    assert [turn_id for turn_id, _ in rows] == sorted(turn_id for turn_id, _ in rows)


def test_a_full_disk_is_an_alarm_and_a_count_and_no_request_fails(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    told: list[StoreHealth] = []
    pages = ["PRAGMA max_page_count = 100"]
    with (
        every_sqlite_connection_runs(pages),
        turn_log(sqlite_url(path), capacity=100, on_health_change=told.append) as log,
    ):
        check_full(path, log, told)
        pages[:] = ["PRAGMA max_page_count = 100000"]
        check_emptied(path, log)


def test_a_full_volume_is_an_alarm_and_a_count_and_no_request_fails(one_megabyte_volume: Path) -> None:
    path = one_megabyte_volume / "turns.db"
    told: list[StoreHealth] = []
    with turn_log(sqlite_url(path), capacity=100, on_health_change=told.append) as log:
        check_full(path, log, told)
        grow = ["mount", "-o", "remount,size=16m", str(one_megabyte_volume)]
        subprocess.run(grow, check=True, capture_output=True)
        check_emptied(path, log)


def check_read_only(log: SqlTurnLog) -> None:
    longest = turns_of_fifty_requests(log)
    assert not log.flush(0.5)
    assert longest < CALL_MOST_MS
    assert not log.health().ok
    assert log.health().last_error
    assert log.health().pending == 50


def check_all_written(url: URL, log: SqlTurnLog) -> None:
    assert log.flush(10)
    assert log.health().ok
    assert log.health().dropped == 0
    assert len(TurnLogReader(url).recent()) == 50


def test_a_read_only_database_is_an_alarm_and_rows_wait(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "turns.db")
    with turn_log(url) as earlier:
        assert earlier.flush(10)
    pragma = ["PRAGMA query_only = ON"]
    with every_sqlite_connection_runs(pragma), turn_log(url) as log:
        check_read_only(log)
        assert TurnLogReader(url).recent() == [], "what is there can still be read"
        pragma.clear()
        check_all_written(url, log)


def test_a_read_only_volume_is_an_alarm_and_rows_wait(one_megabyte_volume: Path) -> None:
    url = sqlite_url(one_megabyte_volume / "turns.db")

    def remount(mode: str) -> None:
        command = ["mount", "-o", f"remount,{mode}", str(one_megabyte_volume)]
        subprocess.run(command, check=True, capture_output=True)

    with turn_log(url) as earlier:
        assert earlier.flush(10)
    remount("ro")
    try:
        with turn_log(url) as log:
            check_read_only(log)
            remount("rw")
            check_all_written(url, log)
    finally:
        remount("rw")


@pytest.mark.parametrize("damage", ["not a database", "torn pages"])
def test_a_damaged_file_is_set_aside_whole_and_a_new_one_serves(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "turns.db"
    url = sqlite_url(path)
    if damage == "not a database":
        path.write_bytes(b"GIF89a" + bytes(5000))
    else:
        with turn_log(url) as earlier:
            turns_of_fifty_requests(earlier, reason="x" * 500)
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 12_000)
    before = path.read_bytes()
    told: list[StoreHealth] = []
    with turn_log(url, on_health_change=told.append) as log:
        longest = turns_of_fifty_requests(log, prefix="new")
        assert log.flush(10)
        health = log.health()
    assert longest < CALL_MOST_MS
    assert health.ok
    assert health.set_aside == told[-1].set_aside
    [aside] = health.set_aside
    assert aside.startswith(f"{path}.corrupt-")
    assert Path(aside).read_bytes() == before
    assert {row.state for row in TurnLogReader(url).recent()} == {TurnState.OK}
    assert len(rows_in_written_order(path)) == 50


def test_damage_found_while_running_sets_the_file_aside_and_loses_no_waiting_row(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    with turn_log(sqlite_url(path)) as log:
        turns_of_fifty_requests(log, prefix="old")
        assert log.flush(10)
        with locked_by_another_process(path):
            turns_of_fifty_requests(log, prefix="new")
            while log.health().ok:
                time.sleep(0.01)
            for file in (path, tmp_path / "turns.db-wal"):
                with file.open("r+b") as stream:
                    stream.write(b"\xff" * file.stat().st_size)
        assert log.flush(10)
        assert len(log.health().set_aside) == 1
    assert [turn_id for turn_id, _ in rows_in_written_order(path)] == [f"new{number:02}" for number in range(50)]

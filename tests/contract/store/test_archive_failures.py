"""The archive on a database that is locked, full, damaged or away, and in a process that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from governor.store.archive import SqlArchive
from governor.store.archive_query import ArchiveReader
from governor.store.database import sqlite_url
from governor.store.query import TurnLogReader
from tests.ailing import every_sqlite_connection_runs, locked_by_another_process
from tests.archive_records import ADA, S1, archive, compaction, head, left
from tests.contract.store.conftest import PostgresServer
from tests.store_records import T0, closed, turn_log

CALL_MOST_MS = 500
"""A call takes microseconds; the rest is what a busy machine may add. One wait for the database would be 1000."""


def keep_ten(kept: SqlArchive, name: str, text: str = "") -> float:
    """Ten compactions; returns the longest call in milliseconds."""
    longest = 0.0
    for number in range(10):
        began = time.perf_counter()
        at = T0 + number
        kept.keep(
            head(f"{name}{number}", at=at), (left(f"{name}{number}{text}"),), compaction(f"{name}{number}", at=at)
        )
        longest = max(longest, time.perf_counter() - began)
    return longest * 1000


def set_aside(path: Path) -> int:
    """How many damaged files there are."""
    return len(list(path.parent.glob("*.corrupt-*[!lm]")))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"\xff" * path.stat().st_size)


async def test_while_another_holds_the_lock_all_is_there_for_who_asks_and_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    with archive(sqlite_url(path)) as kept:
        kept.keep(head("before"), (left("before"),), compaction("before"))
        assert kept.flush(10)
        with locked_by_another_process(path):
            assert keep_ten(kept, "t") < CALL_MOST_MS
            assert not kept.flush(1.5)
            health = kept.health()
            assert not health.ok
            assert "locked" in str(health.last_error)
            assert health.pending == 10
            assert await kept.recall(left("before").handle, ADA) is not None, "readers do not wait"
            assert await kept.recall(left("t3").handle, ADA) is not None
            assert (await kept.heads(ADA, S1))[-1] == head("t9", at=T0 + 9)
        assert kept.flush(10)
        assert (kept.health().ok, kept.health().dropped) == (True, 0)
    assert ArchiveReader(sqlite_url(path)).recall(left("t3").handle) is not None


async def test_a_full_disk_is_an_alarm_and_a_count_and_what_found_room_waits(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    pages = ["PRAGMA max_page_count = 80"]
    with (
        every_sqlite_connection_runs(pages),
        archive(sqlite_url(path), waiting_records=15) as kept,
    ):
        assert kept.flush(10)
        for round_number in range(40):
            # Some 3 KB that do not compress.
            assert keep_ten(kept, f"{round_number}-", "".join(map(chr, range(0x4E00, 0x5200)))) < CALL_MOST_MS
            if not kept.flush(0.3) and kept.health().dropped:
                break
        health = kept.health()
        assert not health.ok
        assert "full" in str(health.last_error)
        assert health.pending >= 15
        assert health.dropped > 0
        pages[:] = ["PRAGMA max_page_count = 100000"]
        assert kept.flush(10)
        assert kept.health().ok
        assert kept.health().dropped == health.dropped, "the count does not fade"


async def test_too_many_bytes_waiting_are_dropped_and_counted(tmp_path: Path) -> None:
    with archive(sqlite_url(tmp_path / "turns.db"), linger_s=30, waiting_bytes=10_000) as kept:
        assert kept.flush(10)
        kept.keep(head("a"), (left("x" * 8_000),), compaction("a"))
        kept.keep(head("b"), (left("y" * 8_000),), compaction("b"))
        kept.note(compaction("c"))
        assert (kept.health().pending, kept.health().dropped) == (2, 1)
        assert await kept.heads(ADA, S1) == (head("a"),), "nothing of a dropped one is shown"


@pytest.mark.parametrize("damage", ["not a database", "torn pages"])
async def test_a_damaged_file_is_set_aside_once_for_both_who_write_to_it(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "turns.db"
    url = sqlite_url(path)
    if damage == "not a database":
        path.write_bytes(b"GIF89a" + bytes(5_000))
    else:
        with archive(url) as earlier:
            keep_ten(earlier, "old", "x" * 5_000)
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 100_000)
    with archive(url) as kept, turn_log(url) as log:
        keep_ten(kept, "new")
        log.closed(closed("t1"))
        assert kept.flush(10)
        assert log.flush(10)
        assert len(await kept.compactions()) == 10
    assert set_aside(path) == 1
    assert len(TurnLogReader(url).recent()) == 1


async def test_damage_found_while_both_write_sets_the_file_aside_once_and_loses_nothing_that_waits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "turns.db"
    url = sqlite_url(path)
    with archive(url) as kept, turn_log(url) as log:
        keep_ten(kept, "old")
        assert kept.flush(10)
        assert log.flush(10)
        with locked_by_another_process(path):
            keep_ten(kept, "new")
            log.closed(closed("t1"))
            until(lambda: not log.health().ok and not kept.health().ok)
            overwrite(path)
            overwrite(tmp_path / "turns.db-wal")
            assert await kept.recall(left("new3").handle) is not None
            assert await kept.recall(left("old3").handle) is None, "unreadable is nothing, and no error"
        assert kept.flush(10)
        assert log.flush(10)
        assert kept.health().ok
        assert {one.turn_id for one in await kept.compactions()} == {f"new{number}" for number in range(10)}
    assert set_aside(path) == 1
    assert [row.turn_id for row in TurnLogReader(url).recent()] == ["t1"]


async def test_with_no_database_at_all_what_waits_is_there_and_the_rest_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("a file where the folder should be")
    with archive(sqlite_url(tmp_path / "in-the-way" / "turns.db")) as kept:
        assert keep_ten(kept, "t") < CALL_MOST_MS
        assert not kept.flush(0.2)
        assert len(await kept.heads(ADA, S1)) == 8
        assert await kept.recall(left("t0").handle) is not None
        assert await kept.recall("gov-0123456789abcdef") is None
        assert await kept.compactions() == ()
        assert kept.close(0.1) == 10


@pytest.mark.postgres
async def test_a_server_that_goes_away_and_comes_back_has_everything(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with archive(url) as kept:
        assert kept.flush(10)
        postgres.stop()
        try:
            keep_ten(kept, "t")
            assert not kept.flush(0.3)
            assert not kept.health().ok
            assert len(await kept.heads(ADA, S1)) == 8
            assert await kept.recall("gov-0123456789abcdef") is None
        finally:
            postgres.start()
        assert kept.flush(10)
        assert (kept.health().ok, kept.health().dropped) == (True, 0)
        assert len(await kept.compactions()) == 10


_KILLED_IN_A_TRANSACTION = """
import os, signal, sys
import sqlalchemy as sa
from tests.archive_records import archive, compaction, head, left

def die(connection, cursor, statement, *_):
    if "INSERT INTO compactions" in statement and doomed:
        os.kill(os.getpid(), signal.SIGKILL)

doomed = False
sa.event.listen(sa.Engine, "after_cursor_execute", die)
with archive(sys.argv[1]) as kept:
    kept.keep(head("whole"), (left("whole"),), compaction("whole"))
    assert kept.flush(10)
    doomed = True
    kept.keep(head("torn", at=1_700_000_009.0), (left("torn"), left("whole")), compaction("torn"))
    kept.flush(10)
print("survived")
"""


def killed_in_a_transaction(url: URL) -> None:
    command = [sys.executable, "-c", _KILLED_IN_A_TRANSACTION, url.render_as_string(hide_password=False)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


async def test_a_kill_within_a_transaction_leaves_all_of_a_compaction_or_nothing(url: URL) -> None:
    killed_in_a_transaction(url)
    with archive(url) as kept:
        assert kept.flush(10)
        assert await kept.heads(ADA, S1) == (head("whole"),)
        found = await kept.recall(left("whole").handle)
        assert found is not None
        assert found.turn_id == "whole"
        assert await kept.recall(left("torn").handle) is None
        assert [one.turn_id for one in await kept.compactions()] == ["whole"]
        kept.keep(head("torn", at=T0 + 9), (left("torn"),), compaction("torn"))
        assert kept.flush(10)
        assert await kept.recall(left("torn").handle) is not None


async def test_a_commit_whose_outcome_is_lost_is_repeated_without_a_second_row(url: URL) -> None:
    with archive(url) as kept:
        kept.keep(head("a"), (left("a"),), compaction("a"))
        assert kept.flush(10)
    with archive(url) as again:  # numbers from 1, as the first did
        again.keep(head("a"), (left("a"),), compaction("a"))
        assert again.flush(10)
        assert await again.heads(ADA, S1) == (head("a"),)
        assert len(await again.compactions()) == 1

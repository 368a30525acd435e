"""What the turn log promises, on each database it supports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import URL

from governor.store.database import engine_for, migrate, sqlite_url
from governor.store.errors import BadDatabaseUrl
from governor.store.model import StoredTurn, StoreHealth
from governor.store.query import TurnLogReader
from governor.store.schema import metadata
from governor.types import PromptShape, SessionId, TurnId, TurnKind, TurnState, Usage
from tests.contract.store.conftest import PostgresServer
from tests.store_records import HOME, T0, closed, opened, turn_log


def stored(url: URL) -> dict[str, StoredTurn]:
    """All rows by turn id; fails if an id has two."""
    rows = TurnLogReader(url).recent(limit=1_000_000)
    by_id = {str(row.turn_id): row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def test_a_turn_is_a_row_that_opens_and_closes_with_every_fact_it_was_given(url: URL) -> None:
    ending = closed(
        "t1",
        TurnState.TRUNCATED,
        session=SessionId("s"),
        kind=TurnKind.TOOL_STEP,
        shape=PromptShape.BRANCH,
        model="m/ü",
        stream=True,
        http_status=200,
        error_code="e",
        reason="r",
        finish_reason="length",
        usage=Usage(
            prompt_tokens=2**40,
            completion_tokens=2,
            cached_tokens=0,
            cached_device_tokens=4,
            cached_host_tokens=5,
            cached_storage_tokens=6,
            reasoning_tokens=7,
        ),
        prompt_tokens_counted=8,
        prompt_tokens_margin=9,
        count_source="usage",
        completion_tokens_estimated=10,
        cap_requested=11,
        cap_applied=12,
        cap_reason="window",
        window_tokens=13,
        message_count=14,
        shared_messages=15,
        broke_at="message 3, byte 17",
        edits=("max_tokens", "stream_options"),
        flags=("answer_lost_to_reasoning",),
        queued_ms=0.0,
        ttft_ms=16.5,
        duration_ms=17.25,
        request_bytes=18,
        response_bytes=19,
    )
    with turn_log(url) as log:
        log.opened(opened("t1"))
        assert log.flush(10)
        assert stored(url)["t1"].state is TurnState.OPEN
        assert stored(url)["t1"].closed is None
        log.closed(ending)
        assert log.flush(10)
        row = stored(url)["t1"]
    assert (row.agent, row.route, row.opened_at, row.state) == ("ada", "/v1/chat/completions", T0, TurnState.TRUNCATED)
    assert row.closed == ending


def test_what_is_unknown_stays_unknown_and_zero_stays_zero(url: URL) -> None:
    with turn_log(url) as log:
        log.closed(closed("unknown"))
        log.closed(closed("zero", usage=Usage(cached_tokens=0, completion_tokens=0), queued_ms=0.0))
        assert log.flush(10)
    rows = stored(url)
    assert rows["unknown"].closed == closed("unknown")
    assert rows["zero"].closed == closed("zero", usage=Usage(cached_tokens=0, completion_tokens=0), queued_ms=0.0)


def test_the_end_of_a_turn_whose_opening_was_never_seen_makes_one_row_that_a_late_opening_completes(url: URL) -> None:
    with turn_log(url) as log:
        log.closed(closed("t1"))
        assert log.flush(10)
        assert stored(url)["t1"].agent is None
        assert stored(url)["t1"].opened_at is None
        log.opened(opened("t1"))
        assert log.flush(10)
    assert stored(url)["t1"].agent == "ada"
    assert stored(url)["t1"].opened_at == T0
    assert stored(url)["t1"].state is TurnState.OK


@pytest.mark.parametrize("flush_between", [False, True])
def test_the_first_ending_wins_and_the_second_is_counted(url: URL, flush_between: bool) -> None:
    with turn_log(url) as log:
        log.opened(opened("t1"))
        log.closed(closed("t1", TurnState.CLIENT_ABORTED))
        if flush_between:
            assert log.flush(10)
        log.closed(closed("t1", TurnState.OK))
        log.closed(closed("t2"))
        assert log.flush(10)
        assert log.health().anomalies == 1
    assert stored(url)["t1"].state is TurnState.CLIENT_ABORTED


def test_rows_left_open_by_an_earlier_run_of_this_home_become_interrupted(url: URL) -> None:
    with turn_log(url) as first:
        first.opened(opened("ended"))
        first.closed(closed("ended"))
        first.opened(opened("cut"))
        assert first.flush(10)
    with turn_log(url, home_id="home-b") as neighbour:
        neighbour.opened(opened("elsewhere"))
        assert neighbour.flush(10)
        with turn_log(url) as second:
            second.opened(opened("running"))
            assert second.flush(10)
            rows = stored(url)
            assert {turn_id: row.state for turn_id, row in rows.items()} == {
                "ended": TurnState.OK,
                "cut": TurnState.INTERRUPTED,
                "elsewhere": TurnState.OPEN,
                "running": TurnState.OPEN,
            }
            assert rows["cut"].closed is None, "when it ended is unknown"


def test_a_turns_own_ending_replaces_the_guess_that_it_was_interrupted(url: URL) -> None:
    with turn_log(url) as first:
        first.opened(opened("t1"))
        assert first.flush(10)
        with turn_log(url) as second:
            assert second.flush(10)
            assert stored(url)["t1"].state is TurnState.INTERRUPTED
        first.closed(closed("t1", TurnState.TRUNCATED))
        assert first.flush(10)
        assert first.health().anomalies == 0
    assert stored(url)["t1"].state is TurnState.TRUNCATED


def test_a_record_that_no_database_takes_is_dropped_alone_and_counted(url: URL) -> None:
    with turn_log(url) as log:
        for number in range(20):
            log.opened(opened(f"t{number}"))
            log.closed(closed(f"t{number}", request_bytes=2**70 if number == 7 else number))
        assert log.flush(10)
        health = log.health()
    assert health.ok
    assert health.dropped == 1
    assert health.last_error is not None
    assert "t7" in health.last_error
    assert set(stored(url)) >= {f"t{number}" for number in range(20) if number != 7}


def test_a_refused_record_that_came_last_does_not_hold_up_a_flush(url: URL) -> None:
    with turn_log(url) as log:
        assert log.flush(10)
        log.closed(closed("t1", request_bytes=2**70))
        assert log.flush(10)
        assert log.health().dropped == 1
    assert stored(url) == {}


def test_text_that_databases_refuse_is_stored_with_replacement_marks(url: URL) -> None:
    with turn_log(url) as log:
        log.closed(closed("t1", reason="a\0b", model="\ud800x", flags=("f\0",)))
        assert log.flush(10)
        assert log.health().dropped == 0
    ending = stored(url)["t1"].closed
    assert ending is not None
    assert (ending.reason, ending.model, ending.flags) == ("a\ufffdb", "?x", ("f\ufffd",))


def test_models_and_migrations_agree(url: URL) -> None:
    with engine_for(url).connect() as connection:
        migrate(connection)
        migrate(connection)
        with connection.begin():
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            inspected = sa.inspect(connection)
            for table in metadata.sorted_tables:
                indexes = {str(index["name"]) for index in inspected.get_indexes(table.name)}
                assert indexes == {str(index.name) for index in table.indexes}, table.name


def test_a_migration_that_is_cut_leaves_nothing_half_done(url: URL) -> None:
    engine = engine_for(url)

    def cut(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if "CREATE INDEX" in statement:
            raise KeyboardInterrupt

    sa.event.listen(engine, "before_cursor_execute", cut)
    with engine.connect() as connection, pytest.raises(KeyboardInterrupt):
        migrate(connection)
    sa.event.remove(engine, "before_cursor_execute", cut)
    with engine.connect() as connection:
        with connection.begin():
            assert sa.inspect(connection).get_table_names() == []
        migrate(connection)


def test_a_database_from_a_newer_version_is_left_alone_and_reported(url: URL) -> None:
    with engine_for(url).connect() as connection:
        migrate(connection)
        with connection.begin():
            connection.execute(sa.text("UPDATE alembic_version SET version_num = 'future'"))
    with turn_log(url) as log:
        log.opened(opened("t1"))
        assert not log.flush(0.3)
        health = log.health()
        assert not health.ok
        assert health.pending == 1
        assert "future" in str(health.last_error)
        assert log.close(0.1) == 1
    assert stored(url) == {}


def test_close_writes_what_waits_and_later_records_are_counted_as_dropped(url: URL) -> None:
    with turn_log(url, linger_s=30) as log:
        log.opened(opened("t1"))
        assert log.close(10) == 0
        assert log.close(10) == 0
        log.closed(closed("t1"))
        log.opened(opened("t2"))
        assert log.health().dropped == 2
    assert set(stored(url)) == {"t1"}


def test_throughput(url: URL, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight agents make a few turns a second; the bound is far below the figure, for machines that are busy."""
    count = 5_000
    with turn_log(url) as log:
        assert log.flush(10)
        began = time.monotonic()
        for number in range(count):
            log.opened(opened(f"t{number}"))
            log.closed(closed(f"t{number}", usage=Usage(prompt_tokens=1, completion_tokens=2), flags=("x",)))
        handed_over = time.monotonic()
        assert log.flush(60)
        seconds = time.monotonic() - began
    with capsys.disabled():
        call_us = (handed_over - began) / count / 2 * 1e6
        print(f" [{url.get_backend_name()}: {count / seconds:,.0f} rows/s, {call_us:.1f} us a call]", end="")
    assert count / seconds > 200


def test_health_changes_are_told_from_outage_to_recovery(tmp_path: Path) -> None:
    told: list[StoreHealth] = []
    url = sqlite_url(tmp_path / "in-the-way" / "turns.db")
    (tmp_path / "in-the-way").write_text("a file where the folder should be")
    with turn_log(url, on_health_change=told.append, capacity=2) as log:
        for number in range(3):
            log.closed(closed(f"t{number}"))
        assert not log.flush(0.3)
        (tmp_path / "in-the-way").unlink()
        assert log.flush(10)
    assert [health.ok for health in told][-1] is True
    assert not told[0].ok
    assert told[-1].dropped == 1


def test_a_listener_that_fails_does_not_stop_the_writer(tmp_path: Path) -> None:
    def fail(health: StoreHealth) -> None:
        raise RuntimeError("listener")

    url = sqlite_url(tmp_path / "turns.db")
    with turn_log(url, on_health_change=fail) as log:
        for _ in range(2):
            log.closed(closed("t1"))
            assert log.flush(10)
        log.closed(closed("t2"))
        assert log.flush(10)
    assert set(stored(url)) == {"t1", "t2"}


def test_the_sqlite_files_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "turns.db"
    path.parent.mkdir()
    path.touch(mode=0o644)
    path.chmod(0o644)
    with turn_log(sqlite_url(path)) as log:
        log.opened(opened("t1"))
        assert log.flush(10)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"turns.db": 0o600, "turns.db-wal": 0o600, "turns.db-shm": 0o600}


def test_a_sqlite_file_deleted_under_us_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    with turn_log(sqlite_url(path)) as log:
        log.opened(opened("t1"))
        assert log.flush(10)
        for file in tmp_path.iterdir():
            file.unlink()
        log.closed(closed("t1"))
        log.opened(opened("t2"))
        assert log.flush(10)
        assert set(stored(sqlite_url(path))) == {"t1", "t2"}
    assert stored(sqlite_url(path))["t1"].state is TurnState.OK


@pytest.mark.parametrize(
    "bad",
    ["nonsense", "mysql://h/db", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true", "postgresql+zz://h/d"],
)
def test_a_url_that_cannot_work_stops_the_start(bad: str) -> None:
    with pytest.raises(BadDatabaseUrl):
        turn_log(bad).__enter__()


@pytest.mark.postgres
def test_a_server_that_goes_away_and_comes_back_has_every_row(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with turn_log(url) as log:
        log.opened(opened("before"))
        assert log.flush(10)
        postgres.stop()
        try:
            log.closed(closed("before"))
            for number in range(300):
                log.opened(opened(f"t{number}"))
                log.closed(closed(f"t{number}"))
            assert not log.flush(0.3)
            assert not log.health().ok
        finally:
            postgres.start()
        assert log.flush(10)
        assert log.health().ok
        assert log.health().dropped == 0
    assert len(stored(url)) == 301
    assert stored(url)["before"].state is TurnState.OK


_UNTIL_KILLED = """
import itertools, sys, time
from governor.store.turnlog import SqlTurnLog
from tests.store_records import closed, opened

log = SqlTurnLog(sys.argv[1], home_id=sys.argv[2])
for number in itertools.count():
    log.opened(opened(f"t{number}"))
    log.closed(closed(f"t{number}"))
    print(number, time.monotonic(), flush=True)
    time.sleep(0.001)
"""


def test_a_kill_loses_at_most_the_batch_that_was_not_flushed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sqlite_url(tmp_path / "turns.db")
    command = [sys.executable, "-c", _UNTIL_KILLED, url.render_as_string(), HOME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        handed_over = [process.stdout.readline() for _ in range(600)]
        os.kill(process.pid, signal.SIGKILL)
        handed_over += process.stdout.readlines()
    times = {f"t{number}": float(at) for number, at in (line.split() for line in handed_over if line.endswith("\n"))}
    with turn_log(url) as log:
        assert log.flush(10)
    rows = stored(url)
    assert TurnState.OPEN not in {row.state for row in rows.values()}
    end = max(times.values())
    lost = [end - at for turn_id, at in times.items() if TurnId(turn_id) not in rows]
    with capsys.disabled():
        print(f" [lost {len(lost)} of {len(times)}, the oldest {max(lost, default=0) * 1000:.0f} ms old]", end="")
    assert rows
    assert max(lost, default=0) < 1.0

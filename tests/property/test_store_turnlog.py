"""Whatever is handed over, in whatever order, whatever the database does: one row a turn, in the right state."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governor.store.database import sqlite_url
from governor.store.query import TurnLogReader
from governor.store.turnlog import SqlTurnLog
from governor.types import TurnState
from tests.store_records import HOME, closed, opened

ENDS = [state for state in TurnState if state not in (TurnState.OPEN, TurnState.INTERRUPTED)]
TURN_IDS = st.sampled_from([f"t{number}" for number in range(6)])

COMMIT_FAILS = "before"
"""The commit reports an error and nothing is stored."""
OUTCOME_LOST = "after"
"""The commit reports an error though all is stored."""
COMMITS = "fine"


class FlakyConnection(sqlite3.Connection):
    """A SQLite connection whose commits fail by a script, as a disk or a network would make them."""

    script: ClassVar[deque[str]] = deque()

    def commit(self) -> None:
        outcome = self.script.popleft() if self.script and self.in_transaction else COMMITS
        if outcome == COMMIT_FAILS:
            self.rollback()
        else:
            super().commit()
        if outcome != COMMITS:
            raise sqlite3.OperationalError(f"disk I/O error ({outcome})")


@contextmanager
def flaky_connections() -> Iterator[deque[str]]:
    """All SQLite connections of SQLAlchemy follow the script."""

    def do_connect(_dialect: object, _record: object, args: list[Any], options: dict[str, Any]) -> FlakyConnection:
        return FlakyConnection(*args, **options)

    FlakyConnection.script.clear()
    sa.event.listen(sa.Engine, "do_connect", do_connect)
    try:
        yield FlakyConnection.script
    finally:
        sa.event.remove(sa.Engine, "do_connect", do_connect)


@dataclass
class Expected:
    """What the log should hold: the rules of the port, said without a database."""

    opened: set[str] = field(default_factory=set)
    ended: dict[str, TurnState] = field(default_factory=dict)
    interrupted: set[str] = field(default_factory=set)
    reclosed: int = 0

    def close(self, turn_id: str, state: TurnState) -> None:
        if turn_id in self.ended:
            self.reclosed += 1
        self.ended.setdefault(turn_id, state)

    def restart(self) -> None:
        self.interrupted |= self.opened - set(self.ended)

    def states(self) -> dict[str, TurnState]:
        left_open = dict.fromkeys(self.opened, TurnState.OPEN)
        return left_open | dict.fromkeys(self.interrupted, TurnState.INTERRUPTED) | self.ended


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), TURN_IDS),
        st.tuples(st.just("close"), TURN_IDS, st.sampled_from(ENDS)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("fail"), st.sampled_from([COMMIT_FAILS, OUTCOME_LOST])),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_one_row_a_turn_in_the_right_state_whatever_happens(steps: list[tuple[Any, ...]]) -> None:
    expected = Expected()
    anomalies = failures = 0
    with tempfile.TemporaryDirectory() as folder, flaky_connections() as script:
        url = sqlite_url(Path(folder) / "turns.db")

        def start() -> SqlTurnLog:
            return SqlTurnLog(url, home_id=HOME, linger_s=0, retry_s=0.001)

        log = start()
        try:
            for step in steps:
                match step:
                    case ("open", turn_id):
                        log.opened(opened(turn_id))
                        expected.opened.add(turn_id)
                    case ("close", turn_id, state):
                        log.closed(closed(turn_id, state))
                        expected.close(turn_id, state)
                    case ("flush",):
                        assert log.flush(10)
                    case ("restart",):
                        assert log.close(10) == 0
                        anomalies += log.health().anomalies
                        expected.restart()
                        log = start()
                    case ("fail", outcome):
                        script.append(outcome)
                        failures += 1
            assert log.flush(10)
            health = log.health()
            anomalies += health.anomalies
        finally:
            log.close(10)
        rows = TurnLogReader(url).recent(limit=1000)
    assert len({row.turn_id for row in rows}) == len(rows)
    assert {row.turn_id: row.state for row in rows} == expected.states()
    assert {row.turn_id for row in rows if row.agent is not None} == expected.opened
    assert health.dropped == 0
    # A second ending that meets a retried batch cannot be told from the retry.
    assert anomalies == expected.reclosed if failures == 0 else anomalies <= expected.reclosed

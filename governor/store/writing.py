"""What one transaction of the turn log does."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from governor.store.backlog import Entry
from governor.store.schema import (
    Row,
    closing_row,
    closing_statement,
    decision_row,
    decision_statement,
    interrupt_statement,
    loss_row,
    loss_statement,
    opening_row,
    opening_statement,
    turns,
)


def write_entries(connection: sa.Connection, entries: Sequence[Entry], *, home_id: str, run_id: str) -> int:
    """Store ``entries`` in one transaction; all or none. Safe to repeat after a commit whose outcome is unknown.

    Returns how many endings found their turn closed already: by an earlier ending, or by an earlier try of the same
    batch.
    """
    ours: Row = {"home_id": home_id, "run_id": run_id}
    dialect = connection.dialect.name
    closings = [ours | closing_row(entry.closed, entry.opened) for entry in entries if entry.closed is not None]
    with connection.begin():
        closed_now: set[str] = set()
        if closings:
            # Counted by RETURNING, since not every driver reports a row count for many rows at once.
            statement = closing_statement(dialect).returning(turns.c.turn_id)
            closed_now.update(connection.execute(statement, closings).scalars())
        # An opening is written with its ending, unless that came second to an earlier ending and was not taken.
        openings = [
            ours | opening_row(entry.opened)
            for entry in entries
            if entry.opened is not None and entry.turn_id not in closed_now
        ]
        if openings:
            connection.execute(opening_statement(dialect), openings)
        decided = [decision_row(number, record) for entry in entries for number, record in entry.decided]
        if decided:
            connection.execute(decision_statement(dialect), decided)
        lost = [loss_row(record) for entry in entries for record in entry.lost]
        if lost:
            connection.execute(loss_statement(dialect), lost)
    return len(closings) - len(closed_now)


def write_interrupted(connection: sa.Connection, *, home_id: str, run_id: str) -> int:
    """Mark the rows that earlier runs of this home left open. Returns how many."""
    with connection.begin():
        return connection.execute(interrupt_statement(home_id=home_id, run_id=run_id)).rowcount

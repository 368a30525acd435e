"""What one transaction of the turn log does. Nothing of the schema's statements is known outside it and the reader."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from governor.store.backlog import Entry
from governor.store.schema import (
    Row,
    closing_statement,
    closing_values,
    interrupt_statement,
    opening_statement,
    opening_values,
    turns,
)
from governor.types import TurnState


def write_entries(connection: sa.Connection, entries: Sequence[Entry], *, home_id: str, run_id: str) -> int:
    """Store ``entries`` in one transaction; all or none. Safe to repeat after a commit whose outcome is unknown.

    Returns how many endings found their turn closed already: by an earlier ending, or by an earlier try of the same
    batch.
    """
    ours: Row = {"home_id": home_id, "run_id": run_id}
    openings: list[Row] = []
    endings: list[Row] = []
    for entry in entries:
        row: Row = {"turn_id": entry.turn_id, **ours, **opening_values(entry.opened)}
        if entry.closed is None:
            openings.append({**row, "listed_at": row["opened_at"], "state": TurnState.OPEN.value})
        else:
            listed_at = entry.closed.closed_at if entry.opened is None else entry.opened.opened_at
            endings.append({**row, "listed_at": listed_at, **closing_values(entry.closed)})
    dialect = connection.dialect.name
    with connection.begin():
        if openings:
            connection.execute(opening_statement(dialect), openings)
        if not endings:
            return 0
        # Counted by RETURNING, since a row count of many rows at once is not reported by every driver.
        closed = connection.execute(closing_statement(dialect).returning(turns.c.turn_id), endings)
        return len(endings) - len(closed.all())


def write_interrupted(connection: sa.Connection, *, home_id: str, run_id: str) -> int:
    """Mark the rows that earlier runs of this home left open. Returns how many."""
    with connection.begin():
        return connection.execute(interrupt_statement(home_id=home_id, run_id=run_id)).rowcount

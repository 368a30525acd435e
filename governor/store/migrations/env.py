"""Alembic's entry: runs the steps on the connection, and in the transaction, of :mod:`governor.store.database`."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from governor.store import archive_schema  # noqa: F401 - its tables join the others' metadata
from governor.store.schema import metadata


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])

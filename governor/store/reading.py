"""Read-only connections, opened for a question and closed after it, beside a governor that writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from governor.store.database import BUSY_TIMEOUT_MS, engine_for, parse_url, sqlite_path
from governor.store.errors import StoreUnreadable


class ReadOnly:
    """The database at ``url``; :class:`~governor.store.errors.BadDatabaseUrl` if that cannot work."""

    def __init__(self, url: str | URL) -> None:
        self._url = parse_url(url)
        self._path = sqlite_path(self._url)
        self._engine = _postgres_engine(self._url) if self._path is None else _sqlite_engine(self._path)

    @contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """One snapshot for all that is asked. May block; raises :class:`~governor.store.errors.StoreUnreadable`, also
        for what the body meets."""
        if self._path is not None and not self._path.exists():
            raise StoreUnreadable(f"no turn log at {self._path} yet")
        try:
            with self._engine.connect() as connection:
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as error:
            reason = getattr(error, "orig", None) or error
            raise StoreUnreadable(
                f"cannot read the turn log {self._url.render_as_string(hide_password=True)}: {reason}"
            ) from error


def _postgres_engine(url: URL) -> sa.Engine:
    return engine_for(url).execution_options(postgresql_readonly=True, isolation_level="REPEATABLE READ")


def _sqlite_engine(path: Path) -> sa.Engine:
    uri = f"{path.absolute().as_uri()}?mode=ro"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)

    engine = sa.create_engine("sqlite://", poolclass=NullPool, creator=connect)
    # One snapshot for all selects of a call; readers of a WAL file neither wait for the writer nor hold it up.
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine

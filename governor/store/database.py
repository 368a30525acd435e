"""Opening a database for writing: the file with its mode, what is damaged set aside, the schema brought up to date.

Everything here may block and raises SQLAlchemy's, alembic's or the operating system's own exceptions;
:mod:`governor.store.writer` is the edge that turns them into health.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from governor.store.errors import BadDatabaseUrl

BUSY_TIMEOUT_MS: Final = 1000
"""How long one attempt waits for another process's lock. Short, so that a shutdown is not held up."""
PG_CONNECT_TIMEOUT_S: Final = 5
PG_TCP_TIMEOUT_MS: Final = 15_000
"""After this long without an acknowledgement a silent server counts as gone."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MIGRATION_LOCK: Final = 0x676F7665726E6F72
"""Advisory lock of PostgreSQL: two governors that start at once migrate one after the other ("governor" in ASCII)."""
_migrating = threading.Lock()
"""Alembic keeps its context in module globals."""
_opening = threading.Lock()
"""The turn log and the archive share a file: what one of them sets aside, the other must not find half replaced."""


def parse_url(url: str | URL) -> URL:
    """``url`` if it names a database we can write to. Raises :class:`BadDatabaseUrl`."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise BadDatabaseUrl(f"database {backend!r} is not supported: use sqlite or postgresql+psycopg")
        parsed.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise BadDatabaseUrl(f"not a database URL: {error}") from error
    except ImportError as error:
        raise BadDatabaseUrl(
            f"the driver {error.name!r} is not installed: pip install 'agent-governor[postgres]'"
        ) from error
    if backend == "sqlite" and (not parsed.database or parsed.database.startswith((":", "file:"))):
        raise BadDatabaseUrl("the turn log needs a plain file: sqlite:////path/to/turns.db")
    return parsed


def sqlite_url(path: Path) -> URL:
    """The URL of the SQLite file at ``path``."""
    return URL.create("sqlite", database=str(path.absolute()))


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; ``None`` for another database."""
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def engine_for(url: URL) -> sa.Engine:
    """An engine without a pool: whoever connects owns the connection and closes it. Connects to nothing yet."""
    if url.get_backend_name() == "postgresql":
        defaults = {"connect_timeout": PG_CONNECT_TIMEOUT_S, "tcp_user_timeout": PG_TCP_TIMEOUT_MS}
        ours = {name: value for name, value in defaults.items() if name not in url.query}
        return sa.create_engine(url, poolclass=NullPool, connect_args=ours)
    engine = sa.create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
    sa.event.listen(engine, "connect", _on_sqlite_connect)
    sa.event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    # The driver's own transaction control commits before DDL; we say BEGIN ourselves.
    connection.isolation_level = None
    # In WAL mode this can lose the last commits to a power cut, never the file's soundness, and saves a sync a batch.
    connection.execute("PRAGMA synchronous = NORMAL")


def _on_sqlite_begin(connection: sa.Connection) -> None:
    # Taking the write lock first avoids the failure of upgrading a stale read, which no busy timeout cures.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class Database:
    """One connection to the database at ``url``, opened when asked for. Used by one thread.

    ``set_aside`` lists the damaged files that were renamed to make place for a new one.
    """

    def __init__(self, url: URL) -> None:
        self.dialect: Final = url.get_backend_name()
        self.set_aside: list[Path] = []
        self._engine = engine_for(url)
        self._path = sqlite_path(url)
        self._connection: sa.Connection | None = None
        self._inode: int | None = None
        self._inspected = False
        self._damaged: int | None = None
        """Inode of the file that was found damaged in use."""

    def ensure_open(self) -> sa.Connection:
        """The connection, to a database that is there, sound and up to date.

        The first opening reads a whole SQLite file to find damage (some 0.5 s a GB). A file that was deleted or
        replaced under us is opened anew: writing on into an unlinked file would lose rows in silence.
        """
        if self._connection is not None and self._inode == self._current_inode():
            return self._connection
        self.close()
        with _opening:
            # Another thread may have replaced it already.
            if self._damaged is None or self._damaged != self._current_inode():
                try:
                    return self._open()
                except (DBAPIError, sqlite3.DatabaseError) as error:
                    if not is_damage(error):
                        raise
            self._make_place()
            return self._open()

    def _open(self) -> sa.Connection:
        if self._path is not None:
            _prepare_file(self._path, inspect=not self._inspected)
        connection = self._engine.connect()
        try:
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        self._inspected = True
        self._damaged = None
        self._inode = self._current_inode()
        self._connection = connection
        return connection

    def _current_inode(self) -> int | None:
        if self._path is None:
            return None
        try:
            return self._path.stat().st_ino
        except FileNotFoundError:
            return -1

    def _make_place(self) -> None:
        """Rename the damaged file, with its journal. It is kept for whoever wants to rescue rows."""
        if self._path is not None:
            self.set_aside.append(_set_aside(self._path))
        self._damaged = None

    def close(self, *, damaged: bool = False) -> None:
        """Let the connection go, whatever state it is in. May be repeated. A ``damaged`` file is not opened again."""
        if damaged:
            self._damaged = self._inode
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except SQLAlchemyError:
                # The rollback on a broken connection fails, too; the connection itself must not be kept.
                connection.invalidate()
                connection.close()


def is_damage(error: BaseException) -> bool:
    """Whether SQLite says that the file itself is broken, rather than busy, full or out of reach."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(origin, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _DAMAGED


def _prepare_file(path: Path, *, inspect: bool) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its journal files the mode of the database.
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        if inspect:
            [(verdict,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                damage = sqlite3.DatabaseError(verdict)
                damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damage


def _set_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        journal = path.with_name(path.name + suffix)
        if journal.exists():
            journal.rename(aside.with_name(aside.name + suffix))
    return aside


def migrate(connection: sa.Connection) -> None:
    """Bring the schema up to date in one transaction. A database newer than this program raises ``CommandError``."""
    config = Config()
    config.set_main_option("script_location", "governor.store:migrations")
    config.attributes["connection"] = connection
    with _migrating, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        command.upgrade(config, "head")

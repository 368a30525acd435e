"""What may be wrong with a database, done to it from outside."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    """A write transaction in another process for as long as the block lasts."""
    hold = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
        "connection.execute('ROLLBACK')\n"
        "connection.close()\n"
    )
    command = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        process.communicate()
    assert process.returncode == 0


@contextmanager
def every_sqlite_connection_runs(pragma: list[str]) -> Iterator[None]:
    """Give SQLite a limit of its own that has the effect of a full disk or a read-only file, for any user."""

    def on_connect(connection: Any, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            for statement in pragma:
                connection.execute(statement)

    sa.event.listen(sa.Engine, "connect", on_connect)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "connect", on_connect)

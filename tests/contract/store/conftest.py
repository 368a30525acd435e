"""One set of tests, two databases: a SQLite file, and a throw-away PostgreSQL server where its programs are found."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.store.database import engine_for, sqlite_url


class PostgresServer:
    """A server on a Unix socket in a folder of its own, run as another user where we are root, which it refuses."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._user: str | None = None
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
            self._user = "nobody"
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            "governor",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, user=self._user)

    def url(self, database: str = "postgres") -> URL:
        socket = {"host": str(self._folder)}
        return URL.create("postgresql+psycopg", username="governor", database=database, query=socket)

    def start(self) -> None:
        options = ["-k", str(self._folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        with (self._folder / "log").open("ab") as log:
            command = [str(self._programs / "postgres"), "-D", str(self._folder / "data"), *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, user=self._user)
        deadline = time.monotonic() + 20
        while True:
            try:
                with engine_for(self.url()).connect():
                    return
            except sa.exc.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)
            self._process = None

    def create_database(self) -> URL:
        name = f"turns_{uuid.uuid4().hex}"
        engine = engine_for(self.url()).execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        return self.url(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    pytest.importorskip("psycopg")
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) + ([Path(on_path)] if on_path else [])
    programs = [initdb.parent for initdb in found if (initdb.parent / "postgres").exists()]
    if not programs:
        pytest.skip("no PostgreSQL server program on this machine")
    # Not under tmp_path: its parents keep other users out.
    folder = Path(tempfile.mkdtemp(prefix="governor-pg-"))
    server = PostgresServer(programs[-1], folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "turns.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create_database()

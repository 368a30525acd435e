"""The demo from outside: starts the world's process, keeps its figures, tells it to start over, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Self

import msgspec

from governor.demo.figures import Mode, RunFigures
from governor.demo.pace import Pace
from governor.settings import Home
from serve.errors import ServeError

MACHINE = "rx7900xtx-tp2"
"""The field's machine: two RX 7900 XTX."""
SPEED = 40.0
"""The 49 minutes of the incident are 73 s. Faster, what the gateway itself takes counts for too much on two cores."""
_ENDS_WITHIN_S = 5.0
_LINE_BYTES = 1024 * 1024


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of both modes. The last run of each mode counts, the one that goes on included."""

    now: RunFigures | None = None
    """Of the run that goes on."""
    last: Mapping[Mode, RunFigures] = {}

    def with_run(self, run: RunFigures) -> Self:
        return msgspec.structs.replace(self, now=run, last={**self.last, run.mode: run})


class Show:
    """One running demo."""

    def __init__(self, process: Process, home: Home, pace: Pace, said: IO[bytes]) -> None:
        self._process = process
        self._said = said
        self.home = home
        """Where its governor runs."""
        self.pace = pace
        self.board = Board()

    def switch(self, mode: Mode) -> None:
        """Start the incident over in this mode."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(f"{mode.value}\n".encode())

    async def follow(self) -> None:
        """Keep :attr:`board` up until the world ends. Raises :class:`~serve.errors.ServeError` when it ends by
        itself."""
        pipe = self._process.stdout
        if pipe is None:
            raise TypeError("the demo was started without a pipe")
        while line := await pipe.readline():
            with contextlib.suppress(msgspec.MsgspecError):
                self.board = self.board.with_run(msgspec.json.decode(line, type=RunFigures))
        raise ServeError(f"The demo has ended by itself: {_last_words(self._said)}")


@asynccontextmanager
async def running_show(mode: Mode, *, speed: float = SPEED, machine: str = MACHINE) -> AsyncIterator[Show]:
    """The demo while inside, in a temporary home. Its process ends with us, however we end: its standard input is a
    pipe that only we hold. Raises :class:`~serve.errors.ServeError`."""
    root = Path(tempfile.mkdtemp(prefix="governor-demo-"))
    with tempfile.TemporaryFile() as said:
        try:
            # -P: the current folder may hold another governor.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "governor.demo"),
                *("--home", str(root), "--machine", machine),
                *("--speed", f"{speed:g}", "--mode", mode.value),
                stdin=PIPE,
                stdout=PIPE,
                stderr=said,
                limit=_LINE_BYTES,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
            )
            try:
                yield Show(process, Home(root), await _pace_of(process, said), said)
            finally:
                await _end(process)
        finally:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)


async def _pace_of(process: Process, said: IO[bytes]) -> Pace:
    """The first thing that it tells."""
    line = b"" if process.stdout is None else await process.stdout.readline()
    if not line:
        raise ServeError(f"The demo does not start: {_last_words(said)}")
    return msgspec.json.decode(line, type=Pace)


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it has not said why"


async def _end(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()

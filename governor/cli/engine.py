"""The engine behind ``governor up``: one that runs already, or the embedded one with its weights."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from governor.cli.choices import EngineOptions
from governor.cli.console import err
from governor.gateway.engine_watch import ProcessListener
from governor.schedule.turns import EngineMode
from governor.settings import Home
from governor.tokens.counter import Counter
from governor.tokens.load import load_gguf
from governor.wiring import EngineTarget
from serve.launcher import EmbeddedOptions, launch_embedded
from serve.lifecycle import EngineState

log = logging.getLogger(__name__)

_MODES = {
    EngineState.STARTING: EngineMode.COMING,
    EngineState.READY: EngineMode.READY,
    EngineState.BUSY: EngineMode.READY,
    EngineState.DOWN: EngineMode.COMING,
    EngineState.FAILED: EngineMode.DOWN,
    EngineState.STOPPED: EngineMode.DOWN,
}
"""A supervisor that is about to restart the engine makes it one that comes."""


class StartedEngine:
    """An engine that runs or is about to. ``listener`` is told of its process, from the moment it is set."""

    def __init__(self, target: EngineTarget | None = None, counter: Counter | None = None) -> None:
        self.target = target or EngineTarget(url="")
        self.counter = counter
        self.supervised = False
        self._listener: ProcessListener | None = None
        self._last: tuple[EngineMode, str] | None = None

    def set_listener(self, listener: ProcessListener) -> None:
        """Tell of the process from now on, beginning with what it is now."""
        self._listener = listener
        if self._last is not None:
            listener(*self._last)

    def on_change(self, state: EngineState, detail: str) -> None:
        self._last = (_MODES[state], detail)
        if self._listener is not None:
            self._listener(*self._last)


@asynccontextmanager
async def started_engine(options: EngineOptions, home: Home) -> AsyncIterator[StartedEngine]:
    """The engine while inside; an embedded one is stopped at the end. Raises :class:`~serve.errors.ServeError`."""
    if options.upstream is not None:
        yield StartedEngine(EngineTarget(url=options.upstream, key=options.upstream_key))
        return
    started = StartedEngine()
    asked = EmbeddedOptions(model=options.model, context_tokens=options.context_tokens, slots=options.slots)
    with Bars() as bars:
        engine = await launch_embedded(asked, home, on_change=started.on_change, progress=bars)
    try:
        started.target = EngineTarget(url=engine.base_url, kind="llamacpp")
        started.supervised = True
        loaded = await asyncio.to_thread(load_gguf, engine.weights.path)
        log.info("token counts: %s", loaded.reason)
        started.counter = loaded.counter
        yield started
    finally:
        await engine.supervisor.stop()


class Bars:
    """Draws :class:`serve.embedded.progress.Progress` on a terminal; silent where there is none."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def started(self, what: str, total_bytes: int | None) -> None:
        self._task = self._progress.add_task(what, total=total_bytes)
        if not err.is_terminal:
            err.print(what)

    def moved(self, done_bytes: int, total_bytes: int | None) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done_bytes, total=total_bytes)

    def finished(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

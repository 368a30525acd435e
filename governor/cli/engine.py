"""The engine behind ``governor up``: one that runs already, the one that a profile stands for, or a twin, launched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from governor.cli.choices import EngineOptions
from governor.cli.console import Exit, err, fail
from governor.gateway.engine_watch import ProcessListener
from governor.gateway.sglang_cache import CachePlaces
from governor.schedule.events import EngineMode
from governor.settings import Home
from governor.tokens.counter import Counter
from governor.tokens.load import load_gguf
from governor.wiring import EngineTarget
from serve.l3_guard import L3Guard
from serve.launcher import EmbeddedOptions, end_orphan, launch_embedded
from serve.lifecycle import EngineState
from serve.profile import Profile, load_profile
from serve.profile.model import EngineKind
from serve.profile.tiers import without
from serve.sglang_launcher import SglangOptions, launch_sglang
from serve.supervisor import Supervisor
from serve.twin_launcher import PROFILE_PREFIX, TwinOptions, launch_twin, machine_of

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
        self.supervisor: Supervisor | None = None
        """Of an engine that we launched."""
        self.plugin_problem = ""
        self.l3_guard: L3Guard | None = None
        self._listener: ProcessListener | None = None
        self._last: tuple[EngineMode, str] | None = None

    def set_listener(self, listener: ProcessListener) -> None:
        """Tell of the process from now on, beginning with what it is now."""
        self._listener = listener
        if self._last is not None:
            listener(*self._last)

    def on_plugin(self, problem: str) -> None:
        self.plugin_problem = problem

    def on_change(self, state: EngineState, detail: str) -> None:
        self._last = (_MODES[state], detail)
        if self._listener is not None:
            self._listener(*self._last)


def chosen_profile(options: EngineOptions) -> Profile:
    """The profile with what the command line says over it, or the end of the command where the two do not fit.

    Raises :class:`~governor.errors.ConfigError` for a bad file, :class:`~serve.errors.ProfileRefused` for a tier to run
    without that there is not.
    """
    twins = {"--speed": options.speed, "--script": options.script, "--seed": options.seed}
    if given := [option for option, value in twins.items() if value is not None]:
        fail(f"{', '.join(given)} is for a twin: --profile {PROFILE_PREFIX}MACHINE", Exit.USAGE)
    name = options.profile or ("upstream" if options.upstream is not None else "embedded")
    profile = load_profile(name)
    kind = profile.engine
    if (kind is EngineKind.UPSTREAM) != (options.upstream is not None):
        fail(f"profile {profile.name}: a server that runs already and --upstream URL go together", Exit.USAGE)
    misplaced = {
        "--model": options.model is not None and kind is EngineKind.UPSTREAM,
        "--context": options.context_tokens is not None and kind is EngineKind.UPSTREAM,
        "--slots": options.slots is not None and kind is not EngineKind.LLAMACPP,
        "--python": options.python is not None and kind is not EngineKind.SGLANG,
    }
    if found := [option for option, is_misplaced in misplaced.items() if is_misplaced]:
        fail(f"profile {profile.name} is for {kind}, which takes no {', '.join(found)}", Exit.USAGE)
    window = options.context_tokens or profile.model.context_length
    slots = options.slots or profile.llamacpp.slots
    adjusted = replace(
        profile,
        model=replace(profile.model, context_length=window),
        llamacpp=replace(profile.llamacpp, slots=slots),
    )
    return without(adjusted, options.without)


def chosen_twin(options: EngineOptions) -> TwinOptions | None:
    """The twin that was asked for, or the end of the command where an option does not fit one; ``None``: no twin."""
    machine = machine_of(options.profile)
    if machine is None:
        return None
    misplaced = {
        "--upstream": options.upstream is not None,
        "--model": options.model is not None,
        "--context": options.context_tokens is not None,
        "--slots": options.slots is not None,
        "--python": options.python is not None,
        "--without": bool(options.without),
    }
    if found := [option for option, is_misplaced in misplaced.items() if is_misplaced]:
        fail(f"a twin is as its machine's file says: it takes no {', '.join(found)}", Exit.USAGE)
    speed = 1.0 if options.speed is None else options.speed
    return TwinOptions(machine=machine, speed=speed, script=options.script, seed=options.seed or 0)


@asynccontextmanager
async def started_engine(options: EngineOptions, home: Home) -> AsyncIterator[StartedEngine]:
    """The engine while inside; one that we launch is stopped at the end. Raises :class:`~serve.errors.ServeError`."""
    twin = chosen_twin(options)
    if twin is not None:
        async with _stopped_at_the_end() as started:
            await _launch_twin(twin, home, started)
            yield started
        return
    profile = chosen_profile(options)
    if profile.engine is EngineKind.UPSTREAM:
        await end_orphan(home)
        yield StartedEngine(EngineTarget(url=options.upstream or "", key=options.upstream_key))
        return
    launch = _launch_sglang if profile.engine is EngineKind.SGLANG else _launch_embedded
    async with _stopped_at_the_end() as started:
        await launch(profile, options, home, started)
        yield started


@asynccontextmanager
async def _stopped_at_the_end() -> AsyncIterator[StartedEngine]:
    started = StartedEngine()
    try:
        yield started
    finally:
        if started.supervisor is not None:
            await started.supervisor.stop()


async def _launch_embedded(profile: Profile, options: EngineOptions, home: Home, started: StartedEngine) -> None:
    asked = EmbeddedOptions(
        model=options.model or profile.model.path,
        context_tokens=profile.model.context_length,
        slots=profile.llamacpp.slots,
        cache_ram_mib=profile.llamacpp.cache_ram_mib,
        chat_template=None if profile.model.chat_template is None else Path(profile.model.chat_template),
        environment=profile.environment,
    )
    with Bars() as bars:
        engine = await launch_embedded(asked, home, on_change=started.on_change, progress=bars)
    started.supervisor = engine.supervisor
    started.target = EngineTarget(url=engine.base_url, kind="llamacpp")
    loaded = await asyncio.to_thread(load_gguf, engine.weights.path)
    log.info("token counts: %s", loaded.reason)
    started.counter = loaded.counter


async def _launch_sglang(profile: Profile, options: EngineOptions, home: Home, started: StartedEngine) -> None:
    asked = SglangOptions(profile=profile, model=options.model, python=options.python)
    engine = await launch_sglang(asked, home, on_change=started.on_change, on_plugin=started.on_plugin)
    started.supervisor, started.l3_guard = engine.supervisor, engine.l3_guard
    site = engine.site
    places = CachePlaces(
        kv_events=site.kv_events_endpoint if profile.reporting.kv_events else None,
        kv_replay=site.kv_replay_endpoint,
        plugin_socket=engine.plugin_socket,
        l3_folder=site.l3_folder,
    )
    started.target = EngineTarget(url=engine.base_url, kind="sglang", cache=places)
    for note in engine.command.notes:
        log.info("%s: %s", note.key, note.text)


async def _launch_twin(asked: TwinOptions, home: Home, started: StartedEngine) -> None:
    engine = await launch_twin(asked, home, on_change=started.on_change, on_plugin=started.on_plugin)
    started.supervisor = engine.supervisor
    places = CachePlaces(
        kv_events=engine.kv_events_endpoint, kv_replay=engine.kv_replay_endpoint, plugin_socket=engine.plugin_socket
    )
    started.target = EngineTarget(url=engine.base_url, kind="sglang", cache=places)
    what = f"no engine but its twin, at speed {asked.speed:g}: {engine.machine.summary}"
    err.print(f"[dim]{escape(what)}[/]")


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

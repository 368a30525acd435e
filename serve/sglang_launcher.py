"""Starts SGLang for a profile: its own environment, folders and sockets, the command, a supervisor around it."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import msgspec

from governor.clock import Clock, SystemClock
from governor.settings import Home
from serve.argv import LaunchCommand, Site, sglang_command
from serve.engine_log import EngineLog
from serve.errors import EngineMissing
from serve.install import InstalledEngine, engines_folder, find_engine, recipe_for
from serve.l3_guard import L3Guard, L3Limits
from serve.launcher import free_port
from serve.lifecycle import RestartPolicy
from serve.placement import prepare
from serve.process import EngineCommand
from serve.profile.model import Profile
from serve.run_state import RunState
from serve.sglang_probe import SglangProbe
from serve.supervisor import OnChange, Supervisor

GRACE_S = 5.0
"""For pages on their way to disk. On SIGTERM it would go on until its running requests end, which may take hours."""
WORKER_TITLE = "sglang::"
"""How scheduler and detokenizer processes call themselves (``setproctitle`` in ``managers/``)."""
_NOT_INHERITED = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS", "VIRTUAL_ENV"}
)
"""They are about our own interpreter. Without compiled imports each start would take a minute longer."""
_VERSION = "import importlib.metadata; print(importlib.metadata.version('sglang'))"
_VERSION_S = 30.0


class SglangOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the person chose."""

    profile: Profile
    model: str | None = None
    """Weights over the profile's: a folder or a hub name."""
    python: Path | None = None
    """Interpreter of an SGLang of the owner's; ``None``: the one that the governor installed."""
    engines: Path | None = None
    """Where engines are installed; ``None``: the usual folder."""


class SglangEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A launched engine. It is not ready before ``supervisor.ensure_ready()`` has returned; stop the supervisor at the
    end on every path."""

    supervisor: Supervisor
    base_url: str
    site: Site
    command: LaunchCommand
    version: str
    l3_guard: L3Guard | None
    """Of its L3 folder; ``None`` where the profile has none."""


async def launch_sglang(
    options: SglangOptions,
    home: Home,
    *,
    on_change: OnChange,
    policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
) -> SglangEngine:
    """Place and start the profile's engine; returns while it loads. Raises :class:`~serve.errors.ServeError`."""
    profile = options.profile
    installed = await asyncio.to_thread(_engine, options)
    port = free_port()
    site = await asyncio.to_thread(
        prepare,
        profile,
        home,
        port=port,
        python=str(installed.python),
        model_path=_model_path(options, installed),
        version=installed.version,
    )
    site = msgspec.structs.replace(site, environment=installed.env)
    command = sglang_command(profile, site, installed.version)
    base_url = f"http://127.0.0.1:{port}"
    supervisor = Supervisor(
        EngineCommand(argv=command.argv, env=command.env, without=_NOT_INHERITED, port=port, worker_title=WORKER_TITLE),
        SglangProbe(base_url),
        EngineLog(home.logs / "engine.log"),
        RunState(home.run),
        clock=clock or SystemClock(),
        on_change=on_change,
        policy=policy,
        grace_s=GRACE_S,
        starting_probe_interval_s=0.5,
    )
    try:
        await supervisor.start()
    except BaseException:
        await supervisor.stop()
        raise
    guard = L3Guard(site.l3_folder, L3Limits.of(profile.l3), profile.l3.on_full) if site.l3_folder else None
    return SglangEngine(
        supervisor=supervisor,
        base_url=base_url,
        site=site,
        command=command,
        version=installed.version,
        l3_guard=guard,
    )


def _engine(options: SglangOptions) -> InstalledEngine:
    """Blocks for a few file reads, or for a look into the owner's environment."""
    if options.python is not None:
        python = options.python.expanduser().absolute()  # not resolved: a venv's interpreter is a link
        return InstalledEngine(
            folder=python.parent, python=python, version=_version(python), env={"PYTHONSAFEPATH": "1"}
        )
    profile = options.profile
    found = find_engine(recipe_for(profile), options.engines or engines_folder())
    if found is None:
        raise EngineMissing(
            f"SGLang for profile {profile.name} is not installed. Install it: "
            f"governor engine install --profile {profile.name}, or point at yours: --python PATH."
        )
    return found


def _version(python: Path) -> str:
    try:
        asked = subprocess.run(
            [python, "-P", "-c", _VERSION], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EngineMissing(f"{python} cannot be run: {problem}. Give the interpreter of an SGLang.") from problem
    if asked.returncode != 0:
        raise EngineMissing(f"There is no SGLang in the environment of {python}. Give another --python.")
    return asked.stdout.strip()


def _model_path(options: SglangOptions, installed: InstalledEngine) -> str | None:
    """A folder is named in full, for the engine may run elsewhere; the engine's own model is the last resort."""
    chosen = options.model or options.profile.model.path
    if chosen is None:
        return None if installed.model_path is None else str(installed.model_path)
    folder = Path(chosen).expanduser()
    return str(folder.absolute()) if folder.is_dir() else options.model

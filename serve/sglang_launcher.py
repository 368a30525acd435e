"""Starts SGLang for a profile: its own environment, folders and sockets, the command, a supervisor around it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
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
from serve.placement import prepare, socket_folder
from serve.process import EngineCommand
from serve.profile.model import Profile
from serve.run_state import RunState
from serve.sglang_feed.plugin import plugin_hello
from serve.sglang_plugin import PLUGIN_PATH, SOCKET_VARIABLE
from serve.sglang_probe import SglangProbe
from serve.supervisor import OnChange, Supervisor

GRACE_S = 2.0
"""On SIGTERM its workers end at once and its first process sleeps for 5 s; asked alone, that one would go on until its
running requests end. Pages on their way to disk are renamed into place when they are whole."""
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
    plugin_socket: Path | None
    """Where our plugin inside it listens; ``None`` where the profile has none."""


async def launch_sglang(
    options: SglangOptions,
    home: Home,
    *,
    on_change: OnChange,
    on_plugin: Callable[[str], None],
    policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
) -> SglangEngine:
    """Place and start the profile's engine; returns while it loads. Raises :class:`~serve.errors.ServeError`.

    ``on_plugin`` is told, before each time the engine becomes ready, what is wrong with our plugin in it, or nothing
    (an empty text). An engine without it serves as well; only less is known of it.
    """
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
    plugin_socket = socket_folder(home) / "plugin" if profile.reporting.plugin else None
    told = {} if plugin_socket is None else {SOCKET_VARIABLE: str(plugin_socket)}
    site = msgspec.structs.replace(site, environment={**installed.env, **told})
    command = sglang_command(profile, site, installed.version)
    base_url = f"http://127.0.0.1:{port}"

    async def ask_plugin() -> None:
        if plugin_socket is not None:
            on_plugin(await _plugin_problem(plugin_socket))

    supervisor = Supervisor(
        EngineCommand(argv=command.argv, env=command.env, without=_NOT_INHERITED, port=port, worker_title=WORKER_TITLE),
        SglangProbe(base_url, before_ready=ask_plugin),
        EngineLog(home.logs / "engine.log"),
        RunState(home.run),
        clock=clock or SystemClock(),
        on_change=on_change,
        policy=policy,
        grace_s=GRACE_S,
        starting_probe_interval_s=0.5,
        probe_interval_s=2.0,
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
        plugin_socket=plugin_socket,
    )


async def _plugin_problem(socket: Path) -> str:
    """SGLang logs a plugin or a hook that fails, and goes on: so it is asked."""
    hello = await plugin_hello(socket)
    if hello is None:
        return "our plugin in the engine does not answer: states of the model and L3 are not seen"
    if hello.missing_hooks:
        return f"our plugin does not fit this SGLang: nothing is seen of {', '.join(hello.missing_hooks)}"
    return ""


def _engine(options: SglangOptions) -> InstalledEngine:
    """Blocks for a few file reads, or for a look into the owner's environment."""
    if options.python is not None:
        python = options.python.expanduser().absolute()  # not resolved: a venv's interpreter is a link
        env = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(PLUGIN_PATH)}
        return InstalledEngine(folder=python.parent, python=python, version=_version(python), env=env)
    profile = options.profile
    found = find_engine(recipe_for(profile), engines_folder())
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

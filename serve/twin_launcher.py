"""Starts the twin as an engine of a governor: a server of ours that behaves as SGLang on a machine that is not there.

It is supervised, probed and listened to just as SGLang itself, so that everything above it is what runs in earnest.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from governor.clock import Clock, SystemClock
from governor.settings import Home
from serve.engine_log import EngineLog
from serve.errors import ServeError
from serve.launcher import free_port
from serve.lifecycle import RestartPolicy
from serve.placement import clear_sockets, kv_endpoints, socket_folder
from serve.process import EngineCommand
from serve.run_state import RunState
from serve.sglang_feed.plugin import plugin_hello
from serve.sglang_probe import SglangProbe
from serve.supervisor import OnChange, Supervisor
from serve.twin.machine import SUFFIX, Machine, load_machine
from serve.twin_server.script import BadScript, load_script

PROFILE_PREFIX: Final = "twin:"
"""Before a machine's name it makes a profile."""


class TwinOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the person chose."""

    machine: str
    """A shipped one by name, or a file's path that ends in ``.toml``."""
    speed: float = 1.0
    """Seconds of the twin in one second."""
    script: Path | None = None
    """Answers; ``None``: all are generated."""
    seed: int = 0
    """Of generated answers."""


class LaunchedTwin(msgspec.Struct, frozen=True, kw_only=True):
    """It is not ready before ``supervisor.ensure_ready()`` has returned; stop the supervisor at the end on every
    path."""

    supervisor: Supervisor
    base_url: str
    machine: Machine
    plugin_socket: Path
    kv_events_endpoint: str
    kv_replay_endpoint: str


def machine_of(profile: str | None) -> str | None:
    """The machine in a profile's name; ``None`` where it is no twin's."""
    return profile.removeprefix(PROFILE_PREFIX) if profile is not None and profile.startswith(PROFILE_PREFIX) else None


async def launch_twin(
    options: TwinOptions,
    home: Home,
    *,
    on_change: OnChange,
    on_plugin: Callable[[str], None],
    policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
) -> LaunchedTwin:
    """Start it; returns while it comes. Raises :class:`~serve.errors.ServeError`.

    ``on_plugin`` is told as of :func:`serve.sglang_launcher.launch_sglang`.
    """
    machine = await asyncio.to_thread(_checked, options)
    await asyncio.to_thread(clear_sockets, home)
    port = free_port()
    events, replay = kv_endpoints(home)
    plugin_socket = socket_folder(home) / "plugin"
    base_url = f"http://127.0.0.1:{port}"

    async def ask_plugin() -> None:
        silent = await plugin_hello(plugin_socket) is None
        on_plugin("the twin does not tell of states and L3: its socket does not answer" if silent else "")

    argv = twin_argv(options, port=port, kv_events=events, kv_replay=replay, plugin_socket=plugin_socket)
    supervisor = Supervisor(
        EngineCommand(argv=argv, port=port),
        SglangProbe(base_url, before_ready=ask_plugin),
        EngineLog(home.logs / "engine.log"),
        RunState(home.run),
        clock=clock or SystemClock(),
        on_change=on_change,
        policy=policy,
        grace_s=2.0,
        probe_interval_s=2.0,
    )
    try:
        await supervisor.start()
    except BaseException:
        await supervisor.stop()
        raise
    return LaunchedTwin(
        supervisor=supervisor,
        base_url=base_url,
        machine=machine,
        plugin_socket=plugin_socket,
        kv_events_endpoint=events,
        kv_replay_endpoint=replay,
    )


def twin_argv(
    options: TwinOptions, *, port: int, kv_events: str, kv_replay: str, plugin_socket: Path
) -> tuple[str, ...]:
    """``-P``: the current folder may hold another ``serve``."""
    machine = options.machine
    told: dict[str, object] = {
        "--machine": Path(machine).expanduser().absolute() if machine.endswith(SUFFIX) else machine,
        "--port": port,
        "--speed": f"{options.speed:g}",
        "--seed": options.seed,
        "--kv-events-endpoint": kv_events,
        "--kv-replay-endpoint": kv_replay,
        "--plugin-socket": plugin_socket,
    }
    if options.script is not None:
        told["--script"] = options.script.expanduser().absolute()
    words = [str(word) for pair in told.items() for word in pair]
    return (sys.executable, "-P", "-u", "-m", "serve.twin_server", *words)


def _checked(options: TwinOptions) -> Machine:
    """Its machine. What is wrong is told here, since a child that ends is started again."""
    if not (math.isfinite(options.speed) and options.speed > 0):
        raise ServeError(f"The twin cannot go at a speed of {options.speed:g}. Give --speed a number above 0.")
    if options.script is not None:
        try:
            load_script(options.script.expanduser())
        except BadScript as error:
            raise ServeError(f"{error}. Mend the script, or leave --script out.") from error
    return load_machine(options.machine)

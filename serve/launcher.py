"""Starts the embedded engine: weights, a free port, the child's configuration, a supervisor around it; and ends what
nobody looks after."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from governor.clock import Clock, SystemClock
from governor.settings import Home
from serve.embedded.config import EmbeddedConfig
from serve.embedded.progress import Progress
from serve.embedded.source import parse_source
from serve.embedded.weights import Weights, resolve_weights
from serve.engine_log import EngineLog
from serve.errors import EngineMissing
from serve.lifecycle import RestartPolicy
from serve.process import EngineCommand
from serve.process_table import ProcessTable
from serve.readiness import HttpProbe
from serve.run_state import RunState
from serve.supervisor import OnChange, Supervisor

DEFAULT_CONTEXT_TOKENS = 32768
"""For weights whose own window we do not know. llama.cpp lowers it to what the model was trained for."""


class EmbeddedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the person chose."""

    model: str | None = None
    """``None``: the bundled model; else a GGUF file, or ``hf:OWNER/REPO[:FILE]``."""
    context_tokens: int | None = None
    """Window of one turn; ``None``: that of the bundled model, or :data:`DEFAULT_CONTEXT_TOKENS`."""
    slots: int = 2
    cache_ram_mib: int = 1024
    chat_template: Path | None = None
    environment: Mapping[str, str] = {}
    """Added to ours."""


class EmbeddedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A launched engine. It is not ready before ``supervisor.ensure_ready()`` has returned; stop the supervisor at the
    end on every path."""

    supervisor: Supervisor
    base_url: str
    weights: Weights
    context_tokens: int
    """Asked for; the engine's ``/props`` tell what each slot really has."""
    version: str
    """Of the ``xllamacpp`` wheel: the server itself reports ``b0-unknown``."""


async def launch_embedded(
    options: EmbeddedOptions,
    home: Home,
    *,
    on_change: OnChange,
    progress: Progress | None = None,
    policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - a frozen value
    clock: Clock | None = None,
) -> EmbeddedEngine:
    """Fetch weights if need be and start the engine; returns while it loads.

    ``progress`` is called from another thread. Raises :class:`~serve.errors.ServeError`.
    """
    version = embedded_version()
    source = parse_source(options.model)
    weights = await asyncio.to_thread(resolve_weights, source, home.models, progress)
    context_tokens = options.context_tokens or weights.context_tokens or DEFAULT_CONTEXT_TOKENS
    port = free_port()
    config = EmbeddedConfig(
        model_path=str(weights.path),
        model_id=weights.model_id,
        port=port,
        parent_pid=os.getpid(),
        context_tokens=context_tokens,
        slots=options.slots,
        cache_ram_mib=options.cache_ram_mib,
        slot_save_path=str(home.root / "kv"),
        chat_template_path=str(options.chat_template or ""),
    )
    base_url = f"http://127.0.0.1:{port}"
    supervisor = Supervisor(
        EngineCommand(argv=embedded_argv(config), env=options.environment, port=port),
        HttpProbe(base_url),
        EngineLog(home.logs / "engine.log"),
        RunState(home.run),
        clock=clock or SystemClock(),
        on_change=on_change,
        policy=policy,
    )
    try:
        await supervisor.start()
    except BaseException:
        await supervisor.stop()
        raise
    return EmbeddedEngine(
        supervisor=supervisor, base_url=base_url, weights=weights, context_tokens=context_tokens, version=version
    )


async def end_orphan(home: Home, *, grace_s: float = 5.0) -> None:
    """End the engine that a killed governor has left in this home, where none of ours takes its place.

    Raises :class:`~serve.errors.AlreadySupervised`.
    """
    run_state = RunState(home.run)
    run_state.acquire()
    try:
        await run_state.reap_orphan(ProcessTable(), grace_s=grace_s)
    finally:
        run_state.release()


def embedded_argv(config: EmbeddedConfig) -> tuple[str, ...]:
    """``-P``: the current folder may hold another ``serve``. ``faulthandler``: a crash in C++ leaves a trace."""
    options = ("-P", "-u", "-X", "faulthandler", "-m", "serve.embedded.child")
    return (sys.executable, *options, "--config", msgspec.json.encode(config).decode())


def embedded_version() -> str:
    """Version of the wheel. Raises :class:`~serve.errors.EngineMissing` where there is none."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineMissing(
            f"There is no embedded engine for {sys.platform} on {os.uname().machine}: its wheel (xllamacpp) is "
            "built for Linux x86_64. Point the governor at an engine of yours instead: governor up --upstream URL."
        )
    return importlib.metadata.version("xllamacpp")


def free_port() -> int:
    """A TCP port on the loopback that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        candidate.bind(("127.0.0.1", 0))
        return int(candidate.getsockname()[1])

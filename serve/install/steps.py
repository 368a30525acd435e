"""Steps that several recipes share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve.install.model import Command, Step
from serve.sglang_plugin import SOCKET_VARIABLE

PIP = ("{python}", "-m", "pip", "install", "--progress-bar=off", "--only-binary=:all:")
"""Wheels only: nothing is compiled behind one's back. The person's own pip configuration (index, proxy, certificates)
holds."""

_PLUGIN = "agent_governor"
"""Our plugin, as SGLang lists it."""
_PLUGIN_FOLDER = "{serve}/sglang_plugin/engine_path"


def probe(*arguments: str, env: Mapping[str, str] | None = None) -> Command:
    """One check of :mod:`serve.install.probe`, in the engine's environment."""
    return Command(argv=("{python}", "-P", "{serve}/install/probe.py", *arguments), env=env or {}, limit_s=600)


def venv_step(pythons: Sequence[str]) -> Step:
    return Step(
        id="venv",
        title="Make a virtual environment",
        commands=(Command(argv=("{base}", "-m", "venv", "{engine}/venv"), limit_s=300),),
        check=probe("python", *pythons),
    )


def lock_step(id_: str, title: str, lock: str) -> Step:
    """Exactly what a hashed lock names. Nothing is resolved, so nothing that is not in it can come along."""
    file = f"{{serve}}/install/locks/{lock}"
    return Step(
        id=id_,
        title=title,
        commands=(Command(argv=(*PIP, "--no-deps", "--require-hashes", "-r", file)),),
        check=probe("packages", file),
    )


def proof_step(
    title: str, modules: Sequence[str], plugins: Sequence[str], check: Command, env: Mapping[str, str]
) -> Step:
    """Last of all: modules import, and SGLang's plugins, ours among them, find what they hook into.

    What ``env`` has for ``PYTHONPATH`` comes first.
    """
    path = ":".join(part for part in (env.get("PYTHONPATH"), _PLUGIN_FOLDER) if part)
    # Our plugin does nothing unless it is told a socket; it opens none before there is a cache.
    env = {**env, "PYTHONPATH": path, SOCKET_VARIABLE: "{engine}/no-socket"}
    return Step(
        id="proof",
        title=title,
        commands=(probe("imports", *modules, env=env), probe("plugins", *plugins, _PLUGIN, env=env)),
        check=check,
    )

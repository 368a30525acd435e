"""Steps that several recipes share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve.install.model import Command, Step

PIP = ("{python}", "-m", "pip", "install", "--progress-bar=off", "--only-binary=:all:")
"""Wheels only: nothing is compiled behind one's back. The person's own pip configuration (index, proxy, certificates)
holds."""


def probe(*arguments: str, env: dict[str, str] | None = None) -> Command:
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

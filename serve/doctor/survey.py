"""All probes but the GPUs' one after another: those say which profile is meant, and so what else is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve.doctor.facts import Facts, Gpus
from serve.doctor.probe_host import probe_host, probe_installed, probe_ports
from serve.doctor.probe_storage import probe_disk
from serve.doctor.system import LocalSystem, System


def survey(
    gpus: Gpus,
    *,
    l3_folder: Path | None,
    ports: Mapping[int, str],
    python: str | None = None,
    system: System | None = None,
) -> Facts:
    """Look at this machine. Changes nothing; blocks for a second, or some where L3 holds many files."""
    system = system or LocalSystem()
    return Facts(
        gpus=gpus,
        host=probe_host(system),
        disk=probe_disk(system, l3_folder) if l3_folder is not None else None,
        ports=probe_ports(ports),
        installed=probe_installed(system, python),
    )

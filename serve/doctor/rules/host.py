"""Processor, shared memory, ports, versions."""

from __future__ import annotations

from collections.abc import Iterator

from serve.doctor.case import Case
from serve.doctor.findings import Finding, Severity
from serve.profile.model import EngineKind, Platform

WHEEL_FLAGS = ("avx2", "bmi2", "fma")
"""What the embedded engine's wheel is built for."""
SHM_BYTES = 1 << 30
CPU_ENGINE_BYTES = 3 << 30
"""The real SGLang on a processor: 2.1 GB at rest with one rank, 2.9 GB with two, as measured."""
_HERE = "this machine"


def host_rules(case: Case) -> Iterator[Finding]:
    if case.profile.engine is EngineKind.LLAMACPP:
        yield from _embedded(case)
    if case.is_sglang:
        yield from _sglang(case)
    for port in case.facts.ports:
        if not port.free:
            yield Finding(
                id="port-taken",
                severity=Severity.WARNING,
                what=f"port {port.port} ({port.purpose}) is in use",
                why="a second program cannot listen there; a governor that runs already is the usual reason",
                evidence=_HERE,
                cure="governor status says whether it is ours; otherwise give another with --port",
            )


def _embedded(case: Case) -> Iterator[Finding]:
    host, installed = case.facts.host, case.facts.installed
    if (host.system, host.machine) != ("linux", "x86_64"):
        yield Finding(
            id="no-embedded-engine",
            severity=Severity.ERROR,
            what=f"there is no embedded engine for {host.system} on {host.machine}",
            why="its package is built for Linux on x86_64 only",
            evidence="the package's wheels on PyPI",
            cure="point the governor at a server of yours: governor up --upstream URL",
        )
        return
    missing = [flag for flag in WHEEL_FLAGS if flag not in host.cpu_flags]
    if missing and host.cpu_flags:
        yield Finding(
            id="cpu-lacks-instructions",
            severity=Severity.ERROR,
            what=f"this processor lacks {', '.join(missing)}",
            why="the embedded engine is built with them and ends with SIGILL at its first token",
            evidence="flags in /proc/cpuinfo; the wheel's build options",
            cure="another machine, or --upstream URL; in a virtual machine: pass the host's CPU model through",
        )
    if installed.llamacpp is None:
        yield Finding(
            id="embedded-engine-missing",
            severity=Severity.ERROR,
            what="the embedded engine's package (xllamacpp) is not installed",
            why="governor up has no engine to start",
            evidence=_HERE,
            cure="install the governor with its dependencies: make run",
        )


def _sglang(case: Case) -> Iterator[Finding]:
    host, profile = case.facts.host, case.profile
    shm = host.shm_bytes
    where = "/dev/shm"  # noqa: S108 - named, not used
    if profile.parallel.tp_size > 1 and shm is not None and shm < SHM_BYTES:
        yield Finding(
            id="small-shm",
            severity=Severity.WARNING,
            what=f"{where} has {shm / 2**20:.0f} MiB",
            why="ranks exchange data through it: NCCL and RCCL fail with 'unhandled system error' when it is full",
            evidence="NCCL's user guide, troubleshooting, shared memory; 64 MiB is a container's default",
            cure="--shm-size=1g or --ipc=host for the container",
        )
    free = host.available_bytes
    if profile.hardware.platform is Platform.CPU and free is not None and free < CPU_ENGINE_BYTES:
        yield Finding(
            id="little-ram",
            severity=Severity.WARNING,
            what=f"{free / 2**30:.1f} GiB of RAM are free",
            why="SGLang's processes take 2 to 3 GiB on a processor before the model",
            evidence="measured on a 2-core machine: 2.1 GB with one rank, 2.9 GB with two",
            cure="end other programs, or use the embedded engine",
        )
    installed = case.facts.installed.sglang
    if installed is None:
        yield Finding(
            id="sglang-not-found",
            severity=Severity.INFO,
            what="no SGLang was found in the environment that was asked",
            why=f"the profile is checked for {profile.versions.chosen}, the version that it installs",
            evidence=_HERE,
            cure=f"governor engine install --profile {profile.name}, or --python PATH if it is elsewhere",
        )
    elif not profile.versions.covers(installed):
        span = f"{profile.versions.oldest} to {profile.versions.newest}"
        yield Finding(
            id="sglang-version",
            severity=Severity.ERROR,
            what=f"SGLang {installed} is installed; the profile is for {span}",
            why="flags and defaults differ between versions, and the command is refused",
            evidence="serve/sglang_flags.py",
            cure=f"install SGLang {profile.versions.chosen}, or widen [versions] after looking",
        )

"""The machine that a bench ran on: what figures depend on and nobody remembers a month later."""

from __future__ import annotations

import os
import platform

from governor.measure.result import MachineFacts
from serve.doctor.system import System

_CPUFREQ = "/sys/devices/system/cpu/cpu{}/cpufreq/{}"
_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
    "--format=csv,noheader",
)
_DRM = "/sys/class/drm"


def machine_facts(system: System, *, engine_is_local: bool) -> MachineFacts:
    """Now; ``load_after`` is the same as before until the run has ended."""
    load = load_average()
    return MachineFacts(
        processor=_processor(system),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_memory_gib(system),
        system=f"{platform.system()} {platform.release()}",
        gpus=_gpus(system),
        processor_mhz=_processor_mhz(system),
        processor_governor=(system.read(_CPUFREQ.format(0, "scaling_governor")) or "").strip() or None,
        load_before=load,
        load_after=load,
        engine_is_local=engine_is_local,
    )


def load_average() -> float:
    """Of the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor(system: System) -> str:
    lines = (system.read("/proc/cpuinfo") or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib(system: System) -> float:
    for line in (system.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 2**20, 1)
    return 0.0


def _processor_mhz(system: System) -> float | None:
    khz = [_number(system.read(_CPUFREQ.format(core, "scaling_cur_freq"))) for core in range(os.cpu_count() or 1)]
    known = [each / 1000 for each in khz if each]
    if known:
        return round(max(known))
    lines = (system.read("/proc/cpuinfo") or "").splitlines()
    told = [_number(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    mhz = [each for each in told if each]
    return round(max(mhz)) if mhz else None


def _gpus(system: System) -> tuple[str, ...]:
    nvidia = system.run(_NVIDIA)
    found = [line.strip() for line in (nvidia or "").splitlines() if line.strip()]
    for card in sorted(system.names(_DRM)):
        clocks = {name: _current(system.read(f"{_DRM}/{card}/device/pp_dpm_{name}")) for name in ("sclk", "mclk")}
        if "-" not in card and all(clocks.values()):
            name = (system.read(f"{_DRM}/{card}/device/product_name") or "AMD GPU").strip()
            found.append(f"{card}: {name}, sclk {clocks['sclk']}, mclk {clocks['mclk']}")
    return tuple(found)


def _current(levels: str | None) -> str | None:
    """The level with a star: ``1: 2304Mhz *``."""
    for line in (levels or "").splitlines():
        if line.rstrip().endswith("*"):
            return line.partition(":")[2].strip(" *")
    return None


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").strip())
    except ValueError:
        return None

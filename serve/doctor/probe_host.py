"""Processor, memory, ports and versions."""

from __future__ import annotations

import errno
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from serve.doctor.facts import Host, Installed, Port
from serve.doctor.system import System

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_VERSION = "import importlib.metadata as m; print(m.version('sglang'))"


def probe_host(system: System) -> Host:
    memory = _meminfo(system.read("/proc/meminfo") or "")
    ram, available = memory.get("MemTotal"), memory.get("MemAvailable")
    limit = _cgroup_limit(system)
    if limit is not None and ram is not None and limit < ram:
        available = min(available or limit, limit)
        ram = limit
    return Host(
        system=sys.platform,
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        cpu_flags=_cpu_flags(system.read("/proc/cpuinfo") or ""),
        ram_bytes=ram,
        available_bytes=available,
        shm_bytes=_size("/dev/shm"),  # noqa: S108 - it is asked for its size
    )


def probe_ports(wanted: Mapping[int, str], host: str = "127.0.0.1") -> tuple[Port, ...]:
    """``wanted``: the purpose of each port. Listening for a moment shows whether it is free; nothing is sent."""
    return tuple(
        Port(port=port, purpose=purpose, free=_is_free(host, port)) for port, purpose in sorted(wanted.items())
    )


def probe_installed(system: System, python: str | None = None) -> Installed:
    """``python``: interpreter of the engine's environment; ``None``: our own."""
    sglang = _version("sglang") if python is None else system.run([python, "-c", _VERSION])
    return Installed(
        python=platform.python_version(),
        governor=_version("agent-governor"),
        llamacpp=_version("xllamacpp"),
        sglang=sglang,
    )


def _meminfo(text: str) -> dict[str, int]:
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _cgroup_limit(system: System) -> int | None:
    for path in _CGROUP_LIMITS:
        text = system.read(path)
        if text is not None and text.isdigit():
            return int(text)
    return None


def _cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(found[1].split())) if found else ()


def _size(path: str) -> int | None:
    try:
        space = os.statvfs(path)
    except OSError:
        return None
    return space.f_blocks * space.f_frsize


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As servers do, or a connection that has just ended would count as somebody who listens.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

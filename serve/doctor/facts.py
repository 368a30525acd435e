"""What the probes found out about this machine. Values only; ``None`` is unknown, which is neither zero nor none."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from serve.profile.model import Platform


class DiskKind(StrEnum):
    NVME = "nvme"
    SSD = "ssd"
    """Flash that is not NVMe."""
    VIRTUAL = "virtual"
    """A virtual machine's disk: what is under it does not show."""
    ROTATING = "rotating"
    NETWORK = "network"
    MEMORY = "memory"
    UNKNOWN = "unknown"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """PCI Express between a GPU and the processor, by its narrowest hop."""

    generation: int | None
    """The highest that both ends can do; at rest a link may run slower."""
    width: int
    """Lanes in use."""
    max_width: int
    """Lanes that the GPU has."""
    bytes_per_s: float | None
    """One direction, after encoding."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    platform: Platform
    arch: str | None
    """``gfx1100``, ``sm_89``."""
    memory_bytes: int | None
    link: Link | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    found: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()
    """What kept a GPU that seems to be there from being asked."""
    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA that the driver can serve."""
    rocm: str | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    system: str = "linux"
    machine: str = "x86_64"
    cpus: int = 1
    cpu_flags: tuple[str, ...] = ()
    """As the kernel spells them, sorted; none where it does not tell."""
    ram_bytes: int | None = None
    """What this process may use: a container's limit counts."""
    available_bytes: int | None = None
    """Of it, free now or freed at once."""
    shm_bytes: int | None = None
    """Size of ``/dev/shm``, through which ranks speak."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Where a folder lies, or would be made."""

    path: str
    exists: bool
    writable: bool
    filesystem: str | None
    kind: DiskKind
    free_bytes: int | None
    free_files: int | None
    """Index entries left; ``None`` where the file system has no fixed number."""
    files: int = 0
    """Files below the folder; counting ends at :data:`serve.doctor.probe_storage.COUNT_LIMIT`."""
    bytes: int = 0
    """What those take."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    purpose: str
    free: bool


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """Versions; ``None``: not there."""

    python: str
    governor: str | None = None
    llamacpp: str | None = None
    """Of the embedded engine's package."""
    sglang: str | None = None
    """In the environment of the interpreter that was asked."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    gpus: Gpus
    host: Host
    disk: Disk | None
    """Of the L3 folder; ``None`` if the profile has no L3."""
    ports: tuple[Port, ...] = ()
    installed: Installed

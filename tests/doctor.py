"""Machines for the doctor's tests: facts as the probes would have found them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from serve.doctor import Case, Facts
from serve.doctor.facts import Disk, DiskKind, Gpu, Gpus, Host, Installed, Link, Port
from serve.plan import Plan
from serve.profile import Profile
from serve.profile.model import Platform
from serve.sglang_settings import GB

FULL_LINK = Link(generation=4, width=16, max_width=16, bytes_per_s=31.5e9)
XTX = Gpu(name="RX 7900 XTX", platform=Platform.ROCM, arch="gfx1100", memory_bytes=24 << 30, link=FULL_LINK)
IGPU = Gpu(name="Ryzen graphics", platform=Platform.ROCM, arch="gfx1036", memory_bytes=512 << 20)
RTX5090 = Gpu(name="RTX 5090", platform=Platform.CUDA, arch="sm_120", memory_bytes=32607 << 20, link=FULL_LINK)
NVME = Disk(
    path="/var/lib/l3",
    exists=True,
    writable=True,
    filesystem="ext4",
    kind=DiskKind.NVME,
    free_bytes=900 * GB,
    free_files=50_000_000,
)


def machine(*gpus: Gpu, disk: Disk | None = NVME, ports: tuple[Port, ...] = (), **host: Any) -> Facts:
    """A good one with these GPUs; ``host`` changes what is named."""
    good: dict[str, Any] = {
        "cpus": 12,
        "cpu_flags": ("avx2", "bmi2", "fma"),
        "ram_bytes": 64 << 30,
        "available_bytes": 60 << 30,
        "shm_bytes": 32 << 30,
    }
    return Facts(
        gpus=Gpus(found=gpus, driver="6.12"),
        host=Host(**{**good, **host}),
        disk=disk,
        ports=ports,
        installed=Installed(python="3.11.7", governor="0.1.0", llamacpp="2026.10", sglang="0.5.23"),
    )


def changed(profile: Profile, **sections: Mapping[str, object]) -> Profile:
    """The profile with some keys set: ``changed(p, memory={"page_size": 1})``."""
    tree: dict[str, Any] = msgspec.to_builtins(profile)
    for name, keys in sections.items():
        tree[name] = {**tree[name], **keys}
    return msgspec.convert(tree, Profile)


def case(profile: Profile, facts: Facts, plan: Plan | None = None) -> Case:
    return Case(facts=facts, profile=profile, plan=plan)

"""GPUs: NVIDIA's by its own tool, AMD's by what the kernel shows (no ROCm needed)."""

from __future__ import annotations

import re

from serve.doctor.facts import Gpu, Gpus, Link
from serve.doctor.system import System
from serve.profile.model import Platform

_GB_PER_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one lane and direction, after encoding (PCI Express base specification)."""
_GENERATION_BY_RATE = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_AMD, _NVIDIA = "0x1002", "0x10de"
_FIELDS = ("name", "memory.total", "compute_cap", "driver_version")
_LINK_FIELDS = ("pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max")
_CUDA = re.compile(r"CUDA Version:\s*([\d.]+)")


def probe_gpus(system: System) -> Gpus:
    nvidia, driver = _nvidia(system)
    amd = _amd(system)
    problems = []
    if not nvidia and _has_display(system, _NVIDIA):
        problems.append("an NVIDIA GPU is there, but nvidia-smi does not answer: the driver is missing or broken")
    if not amd and _has_display(system, _AMD):
        problems.append("an AMD GPU is there, but the kernel shows no compute node for it: amdgpu is not loaded")
    if amd and not system.can_open("/dev/kfd"):
        problems.append("/dev/kfd cannot be opened: this user is not in the groups render and video")
    cuda = _CUDA.search(system.run(["nvidia-smi"]) or "") if nvidia else None
    return Gpus(
        found=(*nvidia, *amd),
        problems=tuple(problems),
        driver=driver or (_amd_driver(system) if amd else None),
        cuda=cuda[1] if cuda else None,
        rocm=_rocm(system) if amd else None,
    )


def _nvidia(system: System) -> tuple[tuple[Gpu, ...], str | None]:
    query = ",".join((*_FIELDS, *_LINK_FIELDS))
    answer = system.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    gpus, driver = [], None
    for line in (answer or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS) + len(_LINK_FIELDS):
            continue
        name, mib, capability, driver, generation, width, max_width = cells
        gpus.append(
            Gpu(
                name=name,
                platform=Platform.CUDA,
                arch=f"sm_{capability.replace('.', '')}" if capability[:1].isdigit() else None,
                memory_bytes=int(mib) << 20 if mib.isdigit() else None,
                link=_link(_number(generation), _number(width), _number(max_width)),
            )
        )
    return tuple(gpus), driver


def _amd(system: System) -> tuple[Gpu, ...]:
    gpus = []
    for node in sorted(system.names(_NODES), key=lambda name: (len(name), name)):
        properties = _properties(system.read(f"{_NODES}/{node}/properties"))
        target = properties.get("gfx_target_version", 0)
        if not target:
            continue  # a processor
        device = f"/sys/class/drm/renderD{properties.get('drm_render_minor', 0)}/device"
        memory = system.read(f"{device}/mem_info_vram_total")
        arch = _gfx(target)
        gpus.append(
            Gpu(
                name=system.read(f"{device}/product_name") or f"AMD {arch}",
                platform=Platform.ROCM,
                arch=arch,
                memory_bytes=int(memory) if memory and memory.isdigit() else None,
                link=_sysfs_link(system, device),
            )
        )
    return tuple(gpus)


def _properties(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _gfx(target: int) -> str:
    """110000 is gfx1100, 90010 is gfx90a (two decimal digits each for major, minor, step; the last two in hex)."""
    return f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"


def _sysfs_link(system: System, device: str) -> Link | None:
    """Along the way to the processor: a Radeon's own port always says x16, its real slot is two bridges up."""
    path = system.real(device)
    generations, widths, max_width = [], [], None
    while path is not None and path.count("/") > 3:
        width = _number(system.read(f"{path}/current_link_width") or "")
        rate = (system.read(f"{path}/max_link_speed") or "").partition(" ")[0]
        if width:
            widths.append(width)
            max_width = max_width or _number(system.read(f"{path}/max_link_width") or "")
            if rate in _GENERATION_BY_RATE:
                generations.append(_GENERATION_BY_RATE[rate])
        path = path.rpartition("/")[0]
    return _link(min(generations, default=None), min(widths, default=None), max_width)


def _link(generation: int | None, width: int | None, max_width: int | None) -> Link | None:
    if not width:
        return None
    lane = _GB_PER_LANE.get(generation or 0)
    return Link(
        generation=generation,
        width=width,
        max_width=max_width or width,
        bytes_per_s=lane * width if lane else None,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _has_display(system: System, vendor: str) -> bool:
    """A PCI display controller (class 0x03) of the vendor."""
    root = "/sys/bus/pci/devices"
    return any(
        system.read(f"{root}/{name}/vendor") == vendor
        and (system.read(f"{root}/{name}/class") or "").startswith("0x03")
        for name in system.names(root)
    )


def _amd_driver(system: System) -> str | None:
    """The packaged driver's version; the kernel's own has the kernel's."""
    return system.read("/sys/module/amdgpu/version") or system.read("/proc/sys/kernel/osrelease")


def _rocm(system: System) -> str | None:
    return system.read("/opt/rocm/.info/version")

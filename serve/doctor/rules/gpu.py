"""GPUs: are they the profile's, and how wide is the way to them."""

from __future__ import annotations

from collections.abc import Iterator

from serve.doctor.case import Case
from serve.doctor.findings import Finding, Severity
from serve.profile.model import Platform
from serve.sglang_settings import GB

MEMORY_TOLERANCE = 0.95
"""A GPU shows a little less than its name says."""
SLOW_LINK_BYTES_PER_S = 7.0 * GB
"""Below PCIe 4.0 x4 or 3.0 x8, a 64K context of a 27B hybrid takes more than 0.3 s from host memory."""
_HERE = "this machine"


def gpu_rules(case: Case) -> Iterator[Finding]:
    wanted, found = case.profile.hardware.gpus, case.facts.gpus.found
    for problem in case.facts.gpus.problems:
        yield Finding(
            id="gpu-unreachable",
            severity=Severity.ERROR if wanted else Severity.WARNING,
            what=problem,
            why="an engine will not see the GPU either",
            evidence=_HERE,
            cure="install the driver and load its module; for AMD: usermod -aG render,video USER, then log in anew",
        )
    if not found:
        yield _none(wanted, case)
    if wanted:
        yield from _compared(case)


def _none(wanted: int, case: Case) -> Finding:
    if not wanted:
        return Finding(
            id="no-gpu",
            severity=Severity.INFO,
            what="there is no GPU on this machine",
            why=f"profile {case.profile.name} needs none: it runs on the processor",
            evidence="neither nvidia-smi nor the kernel's list of compute nodes names one",
            cure="nothing to do",
        )
    return Finding(
        id="no-gpu",
        severity=Severity.ERROR,
        what=f"there is no GPU on this machine; profile {case.profile.name} needs {wanted}",
        why="the engine will not start",
        evidence="neither nvidia-smi nor the kernel's list of compute nodes names one",
        cure="the embedded engine runs without one: governor up, or the real SGLang on the processor: sglang-cpu",
    )


def _compared(case: Case) -> Iterator[Finding]:
    hardware, fitting = case.profile.hardware, case.fitting_gpus
    others = [gpu for gpu in case.facts.gpus.found if gpu not in fitting]
    kind = hardware.arch or str(hardware.platform)
    if case.facts.gpus.found and len(fitting) < hardware.gpus:
        names = ", ".join(f"{gpu.name} ({gpu.arch or gpu.platform})" for gpu in case.facts.gpus.found)
        yield Finding(
            id="too-few-gpus",
            severity=Severity.ERROR,
            what=f"profile {case.profile.name} is for {hardware.gpus} GPUs of kind {kind}; there are: {names}",
            why="the kernels are built for that kind, and each rank needs a GPU of its own",
            evidence=_HERE,
            cure="choose the profile of this machine: governor engine profiles",
        )
    if fitting and others and all(gpu.platform is hardware.platform for gpu in others):
        names = ", ".join(f"{gpu.name} ({gpu.arch})" for gpu in others)
        variable = "HIP_VISIBLE_DEVICES" if hardware.platform is Platform.ROCM else "CUDA_VISIBLE_DEVICES"
        yield Finding(
            id="other-gpus-visible",
            severity=Severity.WARNING,
            what=f"besides the profile's GPUs there are others: {names}",
            why="the runtime counts every GPU, the processor's own included, and may give a rank the wrong one",
            evidence=_HERE,
            cure=f'[environment] {variable} = "0,1" with the numbers of the profile\'s GPUs',
        )
    for number, gpu in enumerate(fitting):
        if gpu.memory_bytes is None or hardware.gpu_memory_gib is None:
            continue
        gib = gpu.memory_bytes / 2**30
        if gib < hardware.gpu_memory_gib * MEMORY_TOLERANCE:
            yield Finding(
                id="less-gpu-memory",
                severity=Severity.WARNING,
                what=f"GPU {number} ({gpu.name}) has {gib:.1f} GiB; the profile is for {hardware.gpu_memory_gib:g}",
                why="pools that the profile fixes may not fit, and what is left for KV is less than it was made for",
                evidence=_HERE,
                cure=f"governor plan --profile {case.profile.name} --gpu-memory {gib:.0f}",
            )
    yield from _links(case)


def _links(case: Case) -> Iterator[Finding]:
    if not case.profile.hicache.enabled:
        return
    for number, gpu in enumerate(case.fitting_gpus[: case.profile.hardware.gpus]):
        link = gpu.link
        if link is None:
            continue
        narrow = link.width < link.max_width
        slow = link.bytes_per_s is not None and link.bytes_per_s < SLOW_LINK_BYTES_PER_S
        if not (narrow or slow):
            continue
        speed = f", {link.bytes_per_s / GB:.1f} GB/s" if link.bytes_per_s else ""
        generation = f"PCIe {link.generation}.0 " if link.generation else ""
        yield Finding(
            id="narrow-link",
            severity=Severity.WARNING if slow else Severity.INFO,
            what=f"GPU {number} ({gpu.name}) has {generation}x{link.width} of x{link.max_width}{speed}",
            why="a context that returns from host memory comes over this link"
            + _return_seconds(case, link.bytes_per_s),
            evidence=f"{_HERE}; published machine 2x7900xtx-am5 restores 64K tokens in 0.546 s",
            cure="a slot with more lanes from the processor, or its bifurcation set to x8/x8",
        )


def _return_seconds(case: Case, bytes_per_s: float | None) -> str:
    if case.plan is None or not bytes_per_s:
        return ""
    unit = case.plan.unit
    seconds = 65_536 * (unit.kv_bytes + unit.state_bytes_per_token) / bytes_per_s
    return f": at least {seconds:.1f} s for 64K tokens"

"""From a case to findings, the gravest first; and which profile a machine is made for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve.doctor.case import Case, Rule, fitting_gpus
from serve.doctor.facts import Gpus
from serve.doctor.findings import ORDER, Finding
from serve.doctor.rules import gpu_rules, host_rules, memory_rules, settings_rules, storage_rules
from serve.profile import Profile
from serve.profile.model import EngineKind, Platform

RULES: tuple[Rule, ...] = (gpu_rules, host_rules, settings_rules, memory_rules, storage_rules)
EMBEDDED = "embedded"
"""The profile of a machine without a GPU that any other profile fits."""


def diagnose(case: Case) -> tuple[Finding, ...]:
    """Each id once for each thing that it is said of."""
    found = [finding for rule in RULES for finding in rule(case)]
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.severity)))


def suggested_profile(gpus: Gpus, profiles: Sequence[Profile]) -> str:
    """The profile whose GPUs these are: the most of them used, then the closest in kind and memory."""
    best: tuple[tuple[int, bool, float], str] | None = None
    for profile in profiles:
        hardware = profile.hardware
        if profile.engine is not EngineKind.SGLANG or hardware.platform is Platform.CPU:
            continue
        fitting = fitting_gpus(gpus, profile)
        memory = (hardware.gpu_memory_gib or 0.0) * 2**30 * 0.95
        if len(fitting) < max(1, hardware.gpus) or any((gpu.memory_bytes or 0) < memory for gpu in fitting):
            continue
        rank = (hardware.gpus, hardware.arch is not None, memory)
        if best is None or rank > best[0]:
            best = (rank, profile.name)
    return best[1] if best else EMBEDDED

"""What a rule looks at: the machine, the profile, and the plan of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from serve.doctor.facts import Facts, Gpu, Gpus
from serve.doctor.findings import Finding
from serve.plan import Plan
from serve.profile import Profile
from serve.profile.model import EngineKind


class Case(msgspec.Struct, frozen=True, kw_only=True):
    facts: Facts
    profile: Profile
    plan: Plan | None = None
    """``None`` where the model's shape is not known, or nothing fits."""
    plan_problem: str | None = None
    """Why there is none."""

    @property
    def version(self) -> str:
        """Of the engine: the installed one, else the one that the profile is for."""
        return self.facts.installed.sglang or self.profile.versions.chosen

    @property
    def is_sglang(self) -> bool:
        return self.profile.engine is EngineKind.SGLANG

    @property
    def fitting_gpus(self) -> tuple[Gpu, ...]:
        return fitting_gpus(self.facts.gpus, self.profile)


def fitting_gpus(gpus: Gpus, profile: Profile) -> tuple[Gpu, ...]:
    """Those of the profile's platform and, where it names one, architecture."""
    hardware = profile.hardware
    return tuple(gpu for gpu in gpus.found if gpu.platform is hardware.platform and hardware.arch in (None, gpu.arch))


Rule = Callable[[Case], Iterator[Finding]]
"""Decides; looks at nothing but the case."""

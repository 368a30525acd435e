"""Which engine this machine's GPU is tested with, or why none is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from serve.doctor import suggested_profile
from serve.doctor.case import fitting_gpus
from serve.doctor.diagnose import EMBEDDED
from serve.doctor.facts import Gpus
from serve.profile import Profile

MODEL_VARIABLE = "GOVERNOR_GPU_MODEL"
PROFILE_VARIABLE = "GOVERNOR_GPU_PROFILE"


class NoCard(Exception):
    """Why there is nothing to test with."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    profile: Profile
    weights: str
    """A folder, or a name in the hub's cache."""
    gpu_gib: float
    """Of the smallest GPU that the profile may use."""


def card_of(gpus: Gpus, profiles: Sequence[Profile], environ: Mapping[str, str]) -> Card:
    """The profile that the doctor suggests, or the owner names, with the owner's weights. Raises :class:`NoCard`."""
    if not gpus.found:
        raise NoCard("; ".join(("no GPU here", *gpus.problems)))
    name = environ.get(PROFILE_VARIABLE) or suggested_profile(gpus, profiles)
    if name == EMBEDDED:
        raise NoCard(f"no profile is for {', '.join(gpu.name for gpu in gpus.found)}; {PROFILE_VARIABLE} names one")
    profile = next((profile for profile in profiles if profile.name == name), None)
    if profile is None:
        raise NoCard(f"{PROFILE_VARIABLE}: there is no shipped profile {name!r}")
    sizes = [gpu.memory_bytes for gpu in fitting_gpus(gpus, profile) if gpu.memory_bytes]
    if len(sizes) < max(1, profile.hardware.gpus):
        raise NoCard(f"profile {name} is not for {', '.join(gpu.name for gpu in gpus.found)}")
    weights = environ.get(MODEL_VARIABLE)
    if not weights:
        raise NoCard(f"{MODEL_VARIABLE} names no weights for profile {name}")
    folder = Path(weights).expanduser()
    return Card(profile=profile, weights=str(folder) if folder.exists() else weights, gpu_gib=min(sizes) / 2**30)

"""A profile with a cache tier off. Pure.

A tier that gives back nothing, or wrong output, is run without until it is mended; the profile's file stays as it is.
Apart from the model, since it is a decision of one start and not a key of a file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec.structs import replace

from serve.errors import ProfileRefused
from serve.profile.model import L3, EngineKind, FlagValue, HiCache, Profile

_L2_FLAGS = ("--enable-hierarchical-cache", "--hicache-")
_L3_FLAGS = ("--hicache-storage-",)
"""What a profile's own ``[flags]`` may say of the tier, by their beginnings."""


class LowerTier(StrEnum):
    """A cache tier below the GPU's."""

    L2 = "l2"
    """Host memory."""
    L3 = "l3"
    """Disk."""


def lower_tiers(profile: Profile) -> frozenset[LowerTier]:
    """Those that the engine would have."""
    match profile.engine:
        case EngineKind.SGLANG:
            has_l2 = profile.hicache.enabled or bool(profile.flags.get("--enable-hierarchical-cache"))
            has_l3 = profile.l3.backend is not None or bool(profile.flags.get("--hicache-storage-backend"))
            return frozenset(tier for tier, there in ((LowerTier.L2, has_l2), (LowerTier.L3, has_l3)) if there)
        case EngineKind.LLAMACPP:
            return frozenset({LowerTier.L2} if profile.llamacpp.cache_ram_mib else ())
        case EngineKind.UPSTREAM:
            return frozenset()


def without(profile: Profile, tiers: Collection[LowerTier]) -> Profile:
    """The profile with these off. L3 is filled from L2 and goes with it.

    Raises :class:`~serve.errors.ProfileRefused` where the profile has no such tier.
    """
    missing = sorted(set(tiers) - lower_tiers(profile))
    if missing:
        reasons = tuple(f"--without {tier}: {_why_missing(profile, tier)}" for tier in missing)
        raise ProfileRefused(profile.name, reasons)
    if LowerTier.L2 in tiers:
        return replace(
            profile,
            hicache=HiCache(),
            l3=L3(),
            llamacpp=replace(profile.llamacpp, cache_ram_mib=0),
            flags=_kept(profile.flags, _L2_FLAGS),
        )
    if LowerTier.L3 in tiers:
        return replace(profile, l3=L3(), flags=_kept(profile.flags, _L3_FLAGS))
    return profile


def _kept(flags: Mapping[str, FlagValue], dropped: tuple[str, ...]) -> dict[str, FlagValue]:
    return {flag: value for flag, value in flags.items() if not flag.startswith(dropped)}


def _why_missing(profile: Profile, tier: LowerTier) -> str:
    match profile.engine, tier:
        case EngineKind.UPSTREAM, _:
            return "the tiers of a server that runs already are not ours; start it without"
        case EngineKind.LLAMACPP, LowerTier.L3:
            return "llama.cpp has no tier on disk"
        case EngineKind.LLAMACPP, _:
            return "it has no such tier (llamacpp.cache_ram_mib is 0)"
        case _, LowerTier.L3:
            return "it has no such tier (l3.backend is unset)"
        case _:
            return "it has no such tier (hicache.enabled is off)"

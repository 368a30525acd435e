"""A profile with a cache tier off: what goes from the command, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from serve.argv import LaunchCommand, command_diff, sglang_command
from serve.errors import ProfileRefused
from serve.profile import Profile, load_profile
from serve.profile.checks import contradictions
from serve.profile.tiers import LowerTier, lower_tiers, without
from tests.profiles import SGLANG_PROFILES, site_for

_L3_NAMES = {
    "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE",
    "SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE",
    "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
    "--hicache-storage-backend",
    "--hicache-storage-backend-extra-config",
    "--hicache-storage-prefetch-policy",
}
_L2_NAMES = {
    "--enable-hierarchical-cache",
    "--hicache-io-backend",
    "--hicache-mem-layout",
    "--hicache-ratio",
    "--hicache-size",
    "--hicache-write-policy",
}

BARE = "rtx5090-32g"
"""Has no tier below the GPU."""
TIERED = tuple(name for name in SGLANG_PROFILES if name != BARE)


def command(profile: Profile) -> LaunchCommand:
    return sglang_command(profile, site_for(profile))


def gone(profile: Profile, *tiers: LowerTier) -> set[str]:
    """Flags and variables that leave the command; nothing may come."""
    lines = command_diff(command(profile), command(without(profile, tiers)))
    assert all(line.startswith("- ") for line in lines), lines
    return {line.removeprefix("- ").partition(" ")[0].partition("=")[0] for line in lines}


@pytest.mark.parametrize("name", TIERED)
def test_without_l2_nothing_of_either_tier_is_in_the_command(name: str) -> None:
    profile = load_profile(name)
    assert "--enable-hierarchical-cache" in gone(profile, LowerTier.L2) <= _L2_NAMES | _L3_NAMES
    left = without(profile, [LowerTier.L2])
    made = command(left)
    assert not [word for word in (*made.argv, *made.env) if "hicache" in word.lower()]
    assert lower_tiers(left) == set()
    assert not list(contradictions(left))


@pytest.mark.parametrize("name", TIERED)
def test_without_l3_the_rest_of_the_command_stays(name: str) -> None:
    profile = load_profile(name)
    assert "--hicache-storage-backend" in gone(profile, LowerTier.L3) <= _L3_NAMES
    assert lower_tiers(profile) == set(LowerTier)
    assert lower_tiers(without(profile, [LowerTier.L3])) == {LowerTier.L2}
    assert without(profile, [LowerTier.L3, LowerTier.L2]) == without(profile, [LowerTier.L2])
    assert without(profile, ()) == profile


def test_flags_of_the_owners_go_too() -> None:
    flags = {"--hicache-storage-backend": "mooncake", "--hicache-ratio": 3, "--log-level": "debug"}
    profile = load_profile("nvidia-single")
    plain = without(profile, [LowerTier.L3])
    by_flag = msgspec.structs.replace(plain, flags=flags)
    assert lower_tiers(by_flag) == set(LowerTier)
    assert set(without(by_flag, [LowerTier.L3]).flags) == {"--hicache-ratio", "--log-level"}
    assert set(without(by_flag, [LowerTier.L2]).flags) == {"--log-level"}


def test_the_embedded_engine_has_its_cache_in_ram() -> None:
    profile = load_profile("embedded")
    assert lower_tiers(profile) == {LowerTier.L2}
    off = without(profile, [LowerTier.L2])
    assert off.llamacpp.cache_ram_mib == 0
    assert off.llamacpp.slots == profile.llamacpp.slots
    assert lower_tiers(off) == set()


@pytest.mark.parametrize(
    ("name", "off", "tiers", "reasons"),
    [
        ("upstream", (), ("l2", "l3"), ("--without l2: the tiers of a server", "--without l3: the tiers of a server")),
        ("embedded", (), ("l3",), ("--without l3: llama.cpp has no tier on disk",)),
        ("embedded", ("l2",), ("l2",), ("--without l2: it has no such tier (llamacpp.cache_ram_mib is 0)",)),
        (BARE, (), ("l3",), ("--without l3: it has no such tier (l3.backend is unset)",)),
        ("nvidia-single", ("l3",), ("l3",), ("--without l3: it has no such tier (l3.backend is unset)",)),
        ("nvidia-single", ("l2",), ("l2", "l3"), ("--without l2: it has no such tier (hicache", "--without l3: ")),
    ],
)
def test_a_tier_that_there_is_not_is_refused(
    name: str, off: tuple[str, ...], tiers: tuple[str, ...], reasons: tuple[str, ...]
) -> None:
    profile = without(load_profile(name), [LowerTier(tier) for tier in off])
    with pytest.raises(ProfileRefused) as refused:
        without(profile, [LowerTier(tier) for tier in tiers])
    assert len(refused.value.reasons) == len(reasons)
    for reason, begin in zip(refused.value.reasons, reasons, strict=True):
        assert reason.startswith(begin)
    assert f"profile {name} cannot be run like this" in refused.value.message

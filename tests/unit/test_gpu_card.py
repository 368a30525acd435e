"""Which engine the GPU tests choose, and why they are skipped."""

from __future__ import annotations

import pytest

from serve.doctor.facts import Gpu, Gpus
from serve.profile import load_profile, shipped_names
from serve.profile.model import Platform
from tests.gpu.card import MODEL_VARIABLE, PROFILE_VARIABLE, NoCard, card_of

PROFILES = [load_profile(name) for name in shipped_names()]


def gpus(count: int, platform: Platform, arch: str, gib: int) -> Gpus:
    return Gpus(found=(Gpu(name=f"a {arch}", platform=platform, arch=arch, memory_bytes=gib << 30),) * count)


RADEONS = gpus(2, Platform.ROCM, "gfx1100", 24)
H200 = gpus(1, Platform.CUDA, "sm_90", 139)
TWO_H200 = gpus(2, Platform.CUDA, "sm_90", 139)


@pytest.mark.parametrize(
    ("found", "environ", "profile", "gib"),
    [
        (RADEONS, {}, "rx7900xtx-tp2", 24),
        (H200, {}, "nvidia-single", 139),
        (TWO_H200, {}, "nvidia-tp2", 139),
        (TWO_H200, {PROFILE_VARIABLE: "nvidia-single"}, "nvidia-single", 139),
    ],
)
def test_the_suggested_profile_or_the_owners(found: Gpus, environ: dict[str, str], profile: str, gib: float) -> None:
    card = card_of(found, PROFILES, {MODEL_VARIABLE: "some/weights", **environ})
    assert (card.profile.name, card.gpu_gib, card.weights) == (profile, gib, "some/weights")


@pytest.mark.parametrize(
    ("found", "environ", "reason"),
    [
        (Gpus(), {}, "^no GPU here$"),
        (Gpus(problems=("/dev/kfd cannot be opened",)), {}, "no GPU here; /dev/kfd"),
        (gpus(1, Platform.ROCM, "gfx906", 16), {}, f"no profile is for a gfx906; {PROFILE_VARIABLE} names one"),
        (H200, {PROFILE_VARIABLE: "none"}, "there is no shipped profile 'none'"),
        (H200, {PROFILE_VARIABLE: "rx7900xtx-tp2"}, "profile rx7900xtx-tp2 is not for a sm_90"),
        (H200, {PROFILE_VARIABLE: "nvidia-tp2"}, "profile nvidia-tp2 is not for a sm_90"),
        (H200, {}, f"{MODEL_VARIABLE} names no weights for profile nvidia-single"),
    ],
)
def test_without_a_card_the_reason_is_told(found: Gpus, environ: dict[str, str], reason: str) -> None:
    with pytest.raises(NoCard, match=reason):
        card_of(found, PROFILES, environ)

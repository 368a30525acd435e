"""The change to SGLang's ROCm kernel build that lets gfx1100 in, with a shared-memory budget that fits it. Pure.

The result is judged by what the script would do (``setup_script``), not by its words, for each architecture.
"""

from __future__ import annotations

import re

from serve.patches.model import Facts, Look, Patch, Place, Status, mark, unknown
from serve.patches.setup_script import Verdict, verdict

BUILD_ID = "gfx1100-kernel-build"
ARCH = "gfx1100"
BUDGET_BYTES = 48 * 1024
"""RDNA3 has 64 KB of LDS a workgroup, as gfx942 has, and the kernels hold static memory besides."""

_RDNA3 = ("gfx1100", "gfx1101", "gfx1102")
_OTHERS = ("gfx90a", "gfx942", "gfx950", "gfx1250", "gfx1030", "gfx1201")
_ALLOWLIST = re.compile(
    r'^if amdgpu_target not in \[(?P<archs>\s*"gfx\w+"(?:,\s*"gfx\w+")*)(?P<end>,?\s*)\]:', re.MULTILINE
)
_BUDGET = re.compile(
    r"^topk_dynamic_smem_bytes = (?P<open>\(\s*)?48 \* 1024 if amdgpu_target == \"gfx942\""
    r" else (?P<other>\d+(?: \* \d+)*)(?P<close>\s*\))?",
    re.MULTILINE,
)


def look_at_build(text: str, _facts: Facts) -> Look:
    """Whether the script builds for gfx1100, and within its shared memory."""
    now = verdict(text, ARCH)
    if now.problem is not None:
        return unknown("setup_rocm.py with an allowlist of architectures", now.problem)
    marked = mark(BUILD_ID) in text
    if _is_good(now):
        if marked:
            return Look(status=Status.APPLIED, detail=f"{ARCH} is let in with {_shown(now)}")
        return Look(status=Status.FIXED_UPSTREAM, detail=f"{ARCH} is let in already, with {_shown(now)}")
    patched = _edited(text, now)
    if marked or patched is None:
        allowlist = "is" if now.allowed else "is not"
        return unknown(
            'if amdgpu_target not in ["gfx942", ...]: and topk_dynamic_smem_bytes = 48 * 1024 if amdgpu_target == '
            '"gfx942" else ..., once each',
            f"{'our mark, but ' if marked else ''}{ARCH} {allowlist} let in, {_shown(now)}",
        )
    then = verdict(patched, ARCH)
    changed = [arch for arch in _OTHERS if verdict(patched, arch) != verdict(text, arch)]
    if not _is_good(then) or changed:
        return unknown(f"a script in which the change concerns {ARCH} alone", f"others change too: {changed}")
    part = "the allowlist names it, the budget does not" if now.allowed else "it is not in the allowlist"
    return Look(status=Status.NEEDED, detail=f"{ARCH}: {part}; {_shown(now)}", patched=patched)


def _edited(text: str, now: Verdict) -> str | None:
    """The text with both changes, those already there left out; ``None`` if a place is not found exactly once."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if not now.allowed:
        if len(_ALLOWLIST.findall(text)) != 1:
            return None
        more = ", ".join(f'"{arch}"' for arch in _RDNA3)
        text = _ALLOWLIST.sub(
            lambda found: f"if amdgpu_target not in [{found['archs']}, {more}{found['end']}]:  # {mark(BUILD_ID)}", text
        )
    places = list(_BUDGET.finditer(text))
    if len(places) == 1 and (places[0]["open"] is None) == (places[0]["close"] is None):
        # The name is the one that sglang-radeon-rdna3's own build step takes for the same change.
        fitting = ", ".join(f'"{arch}"' for arch in ("gfx942", *_RDNA3))
        lines = (
            f"_LDS_64KB_ARCHS = ({fitting})  # {mark(BUILD_ID)}",
            "topk_dynamic_smem_bytes = "
            f"{places[0]['open'] or ''}48 * 1024 if amdgpu_target in _LDS_64KB_ARCHS else {places[0]['other']}"
            f"{places[0]['close'] or ''}",
        )
        return text[: places[0].start()] + newline.join(lines) + text[places[0].end() :]
    return text if _fits(now) else None


def _is_good(seen: Verdict) -> bool:
    return seen.allowed and _fits(seen)


def _fits(seen: Verdict) -> bool:
    return not seen.has_budget or (seen.budget_bytes is not None and seen.budget_bytes <= BUDGET_BYTES)


def _shown(seen: Verdict) -> str:
    if not seen.has_budget:
        return "no shared-memory budget"
    if seen.budget_bytes is None:
        return "a shared-memory budget that cannot be told"
    return f"{seen.budget_bytes // 1024} KB of dynamic shared memory"


BUILD = Patch(
    id=BUILD_ID,
    title="kernel build: RDNA3 in the allowlist, 48 KB of shared memory",
    why=(
        "setup_rocm.py ends for every architecture outside its allowlist, and gives all but gfx942 up to 128 KB of "
        "dynamic shared memory; gfx1100 has 64 KB a workgroup, and launches fail with 'invalid argument'. With the "
        "allowlist alone the kernels build and then fail."
    ),
    evidence=(
        "sgl-project/sglang #37398, #21697, #31137, #27519",
        "PyPI sglang-radeon-rdna3 0.2.0 makes the same two changes",
    ),
    versions="SGLang up to 0.5.23; decided by the script's shape",
    place=Place.KERNEL_SOURCE,
    targets=("setup_rocm.py",),
    look=look_at_build,
    afterwards="Build and install sgl_kernel again (AMDGPU_TARGET=gfx1100).",
)

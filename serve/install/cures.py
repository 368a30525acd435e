"""What the output of a failed step says about its cause, and the cure. Pure."""

from __future__ import annotations

import re

import msgspec


class Cure(msgspec.Struct, frozen=True):
    pattern: str
    advice: str


_CURES = (
    Cure(r"No space left on device", "The disk is full: free space, or choose another disk with --engines DIR."),
    Cure(
        r"ensurepip is not available|No module named (ensurepip|venv)",
        "This Python cannot make virtual environments: install its venv package (Debian, Ubuntu: python3-venv).",
    ),
    Cure(
        r"DO NOT MATCH THE HASHES",
        "A downloaded file is not the one that was pinned: empty pip's cache (pip cache purge), and if it happens "
        "again do not trust that index.",
    ),
    Cure(
        r"No matching distribution found for|Could not find a version that satisfies",
        "The index that pip uses has no such wheel for this machine and this Python. SGLang's wheels need Linux on "
        "x86_64 or aarch64 with glibc 2.34 (Ubuntu 22.04, Debian 12) or later.",
    ),
    Cure(
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Could not resolve host|Temporary failure",
        "The network or the index cannot be reached. pip takes index, proxy and certificates from its own "
        "configuration (pip config list).",
    ),
    Cure(r"CERTIFICATE_VERIFY_FAILED", "A certificate is not trusted: pip config set global.cert FILE."),
    Cure(r"hipcc.*not found|ROCM_HOME|hip[_-]?config", "ROCm's compiler is not found: install ROCm and set ROCM_HOME."),
    Cure(r"ANCHOR NOT FOUND", "The kernel sources are not the version that the patches are for."),
    Cure(r"Killed|was killed by SIGKILL", "It was killed, most likely for want of memory: set MAX_JOBS=2."),
)


def advice_for(output: str) -> str | None:
    """The first cure that fits, in the order of how sure they are; ``None`` where none does."""
    return next((cure.advice for cure in _CURES if re.search(cure.pattern, output)), None)

"""Faults of the field reports that need no patch any more: from which version, and which proof shows it. Pure."""

from __future__ import annotations

import re

import msgspec

from serve.patches.model import Look, Status
from serve.profile.model import version_key

_RELEASE = re.compile(r"\d+(\.\d+)*(\.?post\d+)?(\+.*)?")


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that upstream has mended."""

    id: str
    title: str
    why: str
    evidence: tuple[str, ...]
    fixed_in: str
    """The first version whose source was seen to have the fix; an earlier one may have it too."""
    canary: str
    """The check of ``governor canary`` that would fail if the fault were there."""


def judge(gate: Gate, version: str | None) -> Look:
    """What the version alone says. Never ``APPLIED``: there is nothing to apply."""
    if version is None:
        return Look(status=Status.UNKNOWN_SHAPE, detail=f"version of SGLang not known; the proof is {gate.canary}")
    have, need = version_key(version), version_key(gate.fixed_in)
    if have > need or (have == need and _RELEASE.fullmatch(version)):
        return Look(
            status=Status.FIXED_UPSTREAM,
            detail=f"SGLang {version} has it (seen in {gate.fixed_in}); the proof is {gate.canary}",
        )
    if have == need:
        return Look(
            status=Status.UNKNOWN_SHAPE,
            detail=f"SGLang {version} comes before the release of {gate.fixed_in}; the proof is {gate.canary}",
        )
    return Look(
        status=Status.NEEDED,
        detail=f"SGLang {version} is older than {gate.fixed_in}, where it is fixed: install that; there is no patch",
    )


GATES = (
    Gate(
        id="l3-prior-hash-chain",
        title="L3: a continuation is stored under the hash of what really precedes it",
        why=(
            "A page's key is the hash of all before it. With the wrong prior hash the continuation of a restored "
            "prefix was written under keys that no later look-up asks for: L3 filled and never served."
        ),
        evidence=("field reports", "#39147, #39267", "0.5.23 scheduler.py:3342-3391, unified_tree_core.py:659-678"),
        fixed_in="0.5.23",
        canary="'governor canary': after a restart the continuation is served from L3, to its full depth",
    ),
    Gate(
        id="l3-re-anchor",
        title="L3: what was restored hangs under the node it continues",
        why=(
            "A node that was split while its pages were on their way kept an identity that no longer was its own: "
            "what came from L3 was attached elsewhere, or not at all."
        ),
        evidence=("field reports", "#38480", "0.5.23 unified_tree_core.py:1467-1530, unified_radix_cache.py:1777-1818"),
        fixed_in="0.5.23",
        canary="'governor canary': after a restart a branch of a restored prefix is served from L3, output equal",
    ),
)

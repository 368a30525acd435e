"""All patches there are, in the order in which they are applied to a file."""

from __future__ import annotations

from serve.patches.allreduce import RESTRICT, STORE
from serve.patches.gptq_mtp import MTP_RULES
from serve.patches.kernel_build import BUILD
from serve.patches.model import Patch

ALL: tuple[Patch, ...] = (BUILD, STORE, RESTRICT, MTP_RULES)


def by_id(patch_id: str) -> Patch:
    """Raises :class:`KeyError`."""
    return {patch.id: patch for patch in ALL}[patch_id]

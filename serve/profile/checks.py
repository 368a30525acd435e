"""What must hold between the values of a profile, whatever the engine's version. Pure.

What one engine version cannot do, or what is known to break, is in :mod:`serve.argv` and :mod:`serve.unsafe`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from governor.policy.lines import KeyPath
from serve.profile.model import EngineKind, Profile


class Contradiction(msgspec.Struct, frozen=True):
    message: str
    keys: tuple[KeyPath, ...]
    """Keys that have a part in it."""


def contradictions(profile: Profile) -> Iterator[Contradiction]:
    """In the order in which a person would mend them."""
    if profile.engine is EngineKind.SGLANG:
        yield from _sglang(profile)
    if profile.l3.backend is not None and not profile.hicache.enabled:
        yield Contradiction("L3 is filled from L2: set hicache.enabled = true", (("l3", "backend"),))
    if profile.hicache.ratio is not None and profile.hicache.size_gb is not None:
        keys = (("hicache", "ratio"), ("hicache", "size_gb"))
        yield Contradiction("hicache.size_gb wins over hicache.ratio: set one of them", keys)


def _sglang(profile: Profile) -> Iterator[Contradiction]:
    keys: tuple[KeyPath, ...]
    if not profile.versions.covers(profile.versions.chosen):
        keys = (("versions", "install"), ("versions", "oldest"), ("versions", "newest"))
        yield Contradiction("versions.oldest <= versions.install <= versions.newest does not hold", keys)
    page, chunk = profile.memory.page_size, profile.memory.chunked_prefill_size
    if page and chunk and chunk % page:
        keys = (("memory", "chunked_prefill_size"), ("memory", "page_size"))
        # SGLang arg_groups/validation_hook.py:243
        yield Contradiction(f"chunked_prefill_size {chunk} is no multiple of page_size {page}", keys)
    interval = profile.mamba.track_interval
    if page and interval and interval % page:
        keys = (("mamba", "track_interval"), ("memory", "page_size"))
        # SGLang arg_groups/mamba_hook.py:115-154
        yield Contradiction(f"track_interval {interval} is no multiple of page_size {page}", keys)
    both = profile.scheduling.prefill_decode_interval, profile.scheduling.max_consecutive_prefill_batches
    if None not in both:
        keys = (("scheduling", "max_consecutive_prefill_batches"), ("scheduling", "prefill_decode_interval"))
        yield Contradiction("prefill_decode_interval replaces max_consecutive_prefill_batches: set one", keys)

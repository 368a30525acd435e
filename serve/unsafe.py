"""Settings that are known to break SGLang, each with its evidence. Data and pure predicates over a profile.

Only what a profile and a version alone show. What needs a look at the machine is the doctor's, which tells these too.
Numbers are SGLang issues; files are those of SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from serve.profile.model import (
    HostLayout,
    IoBackend,
    KvDtype,
    MambaStrategy,
    Platform,
    PriorityOrder,
    Profile,
    WritePolicy,
    version_key,
)

Predicate = Callable[[Profile, str], bool]


class Danger(msgspec.Struct, frozen=True, kw_only=True):
    """One known danger. The owner may take it on by naming ``id`` in the profile's ``accept_unsafe``."""

    id: str
    key: str
    """The profile's key that has to change."""
    reason: str
    evidence: str
    cure: str
    applies: Predicate


def dangers(profile: Profile, version: str) -> tuple[Danger, ...]:
    """Those that apply and that the owner has not taken on."""
    return tuple(
        danger for danger in ALL if danger.id not in profile.accept_unsafe and danger.applies(profile, version)
    )


def state_slots_per_request(profile: Profile) -> int:
    """State slots that SGLang reserves for each running request of a hybrid model.

    Source: ``kv_cache_configurator.py:3062-3088``: 3, and 2 more for ``extra_buffer`` with overlap scheduling, 1
    without, 1 for ``extra_buffer_lazy``.
    """
    strategy = profile.mamba.radix_cache_strategy
    if strategy is MambaStrategy.NO_BUFFER:
        return 3
    if strategy is MambaStrategy.EXTRA_BUFFER_LAZY or profile.kernels.overlap_schedule is False:
        return 4
    return 5


def _slots_cap_requests(profile: Profile, _version: str) -> bool:
    slots, requests = profile.mamba.max_cache_size, profile.memory.max_running_requests
    return profile.model.hybrid and bool(slots and requests) and _slots_needed(profile) > (slots or 0)


def _slots_needed(profile: Profile) -> int:
    return (profile.memory.max_running_requests or 0) * state_slots_per_request(profile)


def _fewer_slots_than_chunks(profile: Profile, _version: str) -> bool:
    tokens, chunk = profile.memory.max_total_tokens, profile.memory.chunked_prefill_size
    slots = profile.mamba.max_cache_size
    return profile.model.hybrid and bool(tokens and chunk and slots) and (tokens or 0) / (chunk or 1) > (slots or 0)


def _fp8_kv(profile: Profile) -> bool:
    return profile.model.kv_cache_dtype in (KvDtype.FP8_E4M3, KvDtype.FP8_E5M2)


def _no_buffer_with_overlap_or_pages(profile: Profile, _version: str) -> bool:
    pages = (profile.memory.page_size or 1) > 1
    no_buffer = profile.mamba.radix_cache_strategy is MambaStrategy.NO_BUFFER
    return no_buffer and (pages or profile.kernels.overlap_schedule is not False)


ALL: tuple[Danger, ...] = (
    Danger(
        id="hybrid-layer-first",
        key="hicache.mem_layout",
        reason="a hybrid model's host states have no layer_first layout: the engine asserts at its first host pool",
        evidence="#24121; mem_cache/pool_host/mamba.py:103-106",
        cure='mem_layout = "page_first_direct" with io_backend = "direct"',
        applies=lambda p, _v: p.model.hybrid and p.hicache.enabled and p.hicache.mem_layout is HostLayout.LAYER_FIRST,
    ),
    Danger(
        id="hybrid-kernel-io",
        key="hicache.io_backend",
        reason="kernel copies between GPU and host end in an illegal memory access with hybrid models, and are the "
        "default",
        evidence="#30055, #16771; published machine 5090-32g",
        cure='io_backend = "direct" with mem_layout = "page_first_direct"',
        applies=lambda p, _v: p.model.hybrid and p.hicache.enabled and p.hicache.io_backend is not IoBackend.DIRECT,
    ),
    Danger(
        id="sm120-fp8-hicache",
        key="hicache.enabled",
        reason="FP8 KV copied from GPU to host on sm_120 ends in an illegal memory access or a segmentation fault",
        evidence="published machine 5090-32g: kernel and direct io, pages of 1 and 64, overlap on and off",
        cure="hicache.enabled = false, or BF16 KV and a canary run",
        applies=lambda p, _v: p.hardware.arch == "sm_120" and p.hicache.enabled and _fp8_kv(p),
    ),
    Danger(
        id="l3-page-of-one",
        key="memory.page_size",
        reason="with pages of one token the file backend writes one file a token; unset means one",
        evidence="a production folder held 268,000 to 619,000 files; mem_cache/hicache_storage.py:822",
        cure="page_size = 64",
        applies=lambda p, _v: p.l3.backend is not None and (p.memory.page_size or 1) < 16,
    ),
    Danger(
        id="l3-without-cap",
        key="l3.max_size_gb",
        reason="without a cap the file backend never deletes anything, until the disk is full",
        evidence="SGLang pull requests 26670, 28654",
        cure="max_size_gb = 200",
        applies=lambda p, _v: p.l3.backend is not None and p.l3.max_size_gb is None,
    ),
    Danger(
        id="hybrid-selective-write",
        key="hicache.write_policy",
        reason="write_through_selective waits for a second hit that a hybrid's prefix seldom gets: L2 stays empty",
        evidence="field report of the RDNA4 fork; mem_cache/unified_radix_cache.py:558",
        cure='write_policy = "write_through"',
        applies=lambda p, _v: (
            p.model.hybrid and p.hicache.enabled and p.hicache.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        ),
    ),
    Danger(
        id="no-buffer-pages-overlap",
        key="mamba.radix_cache_strategy",
        reason="no_buffer works only with pages of one token and overlap scheduling off",
        evidence="arg_groups/mamba_hook.py:157-163 asserts it",
        cure='radix_cache_strategy = "extra_buffer"',
        applies=_no_buffer_with_overlap_or_pages,
    ),
    Danger(
        id="slots-cap-requests",
        key="mamba.max_cache_size",
        reason="fewer state slots than max_running_requests needs: the engine lowers the requests without saying so, "
        "and under pressure it ends with 'Can not alloc mamba cache'",
        evidence="kv_cache_configurator.py:3135-3158; #36770, #37619",
        cure="max_cache_size of at least 5 times max_running_requests (4 without overlap), and some that stay behind",
        applies=_slots_cap_requests,
    ),
    Danger(
        id="fewer-slots-than-chunks",
        key="mamba.max_cache_size",
        reason="fewer state slots than the KV pool has prefill chunks: prefixes stay there that nothing can resume",
        evidence="#36935: a hit of 40,000 tokens fell to 0 silently",
        cure="a larger chunked_prefill_size or max_cache_size",
        applies=_fewer_slots_than_chunks,
    ),
    Danger(
        id="rocm-aiter",
        key="kernels.attention_backend",
        reason="the default attention backend on ROCm is aiter, which RDNA3 cannot run",
        evidence="arg_groups/model_override_base.py:326",
        cure='attention_backend = "triton"',
        applies=lambda p, _v: (
            p.hardware.platform is Platform.ROCM
            and (p.hardware.arch or "").startswith("gfx11")
            and p.kernels.attention_backend in (None, "aiter")
        ),
    ),
    Danger(
        id="priority-policy",
        key="scheduling.policy",
        reason="priorities work only with the fcfs or the lof policy: the engine asserts",
        evidence="arg_groups/validation_hook.py:281",
        cure='policy = "fcfs"',
        applies=lambda p, _v: (
            p.scheduling.priority is not PriorityOrder.OFF and p.scheduling.policy not in (None, "fcfs", "lof")
        ),
    ),
    Danger(
        id="hybrid-mixed-chunk",
        key="scheduling.mixed_chunk",
        reason="mixed chunks corrupt the stored states of hybrid models before 0.5.23: wrong output without an error",
        evidence="#39342, #39526",
        cure="mixed_chunk = false",
        applies=lambda p, v: (
            p.model.hybrid and p.scheduling.mixed_chunk is True and version_key(v) < version_key("0.5.23")
        ),
    ),
    Danger(
        id="int8-checkpoint-hicache",
        key="flags.--enable-int8-mamba-checkpoint",
        reason="the host pools would read int8 states as bf16",
        evidence="arg_groups/mamba_hook.py:75-101 refuses it",
        cure="leave the flag out",
        applies=lambda p, _v: p.hicache.enabled and p.flags.get("--enable-int8-mamba-checkpoint") is True,
    ),
    Danger(
        id="hicache-without-radix",
        key="flags.--disable-radix-cache",
        reason="HiCache holds what the radix cache evicts; without it there is nothing to hold",
        evidence="arg_groups/kv_cache_hook.py:393 refuses it",
        cure="leave the flag out",
        applies=lambda p, _v: p.hicache.enabled and p.flags.get("--disable-radix-cache") is True,
    ),
)

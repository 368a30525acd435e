"""How many tokens and states each tier holds: SGLang's own sizing rules, redone on paper. Pure.

All bytes are those of one rank unless a name says otherwise. Line numbers are SGLang 0.5.23's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from serve.plan.shape import ModelShape
from serve.profile.model import Dtype, KvDtype, Profile
from serve.sglang_settings import GB
from serve.unsafe import state_slots_per_request

GIB = 1 << 30
CONTEXT_GIB = 0.5
"""GPU memory that driver and runtime hold before the weights are loaded."""
DEFAULT_RATIO = 2.0
"""Host pool over device pool when neither ratio nor size is given (``arg_groups/hicache_hook.py:82``)."""
HOST_MEMORY_FRACTION, HOST_RESERVE_GIB = 0.8, 10
"""When neither ratio nor size is given, the host pools of all ranks take at the most this share of the RAM that is left
after the reserve (``mem_cache/hicache_auto_size.py:78-120``)."""
DEFAULT_STATE_SHARE = 0.9
"""``--mamba-full-memory-ratio``."""
DRAFTS_IN_WEIGHTS = frozenset({"NEXTN", "EAGLE"})
_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


class DoesNotFit(ValueError):
    """The weights leave no memory for cache pools; the message has the numbers."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What one token and one state take on one rank."""

    kv_bytes: int
    state_bytes: int
    """0 for a model without states."""
    tp: int
    page_tokens: int
    chunk_tokens: int

    @property
    def state_bytes_per_token(self) -> float:
        """A context's states spread over its tokens: one a prefill chunk."""
        return self.state_bytes / self.chunk_tokens


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier holds."""

    kv_tokens: int
    state_slots: int
    """0 for a model without states."""
    kv_bytes: int
    """Of one rank."""
    state_bytes: int
    """Of one rank."""


class DevicePools(msgspec.Struct, frozen=True, kw_only=True):
    """L1 and how it came about."""

    tier: Tier
    budget_bytes: int | None
    """For KV, states and speculation's scratch; ``None`` where the profile fixes the pools and no memory was given."""
    scratch_bytes: int
    """States of speculation's draft tokens."""
    requests: int
    """That decode together at the most, by slots and by ``max_running_requests``."""
    mem_fraction: float | None
    fraction_is_default: bool


class DiskTier(msgspec.Struct, frozen=True, kw_only=True):
    """L3, all ranks together."""

    kv_tokens: int
    """With their states."""
    files: int
    tokens_per_gb: int
    files_per_gb: int


def unit_of(profile: Profile, shape: ModelShape) -> Unit:
    tp = profile.parallel.tp_size
    kv = 1 if profile.model.kv_cache_dtype in (KvDtype.FP8_E4M3, KvDtype.FP8_E5M2) else 2
    ssm = profile.mamba.ssm_dtype or profile.environment.get("SGLANG_MAMBA_SSM_DTYPE") or shape.ssm_dtype
    conv = profile.mamba.conv_dtype or profile.environment.get("SGLANG_MAMBA_CONV_DTYPE") or Dtype.BFLOAT16
    return Unit(
        kv_bytes=shape.kv_bytes_per_token(tp=tp, itemsize=kv, with_draft=_has_draft_layers(profile)),
        state_bytes=shape.state_bytes(tp=tp, ssm_itemsize=_itemsize(ssm), conv_itemsize=_itemsize(conv)),
        tp=tp,
        page_tokens=profile.memory.page_size or 1,
        chunk_tokens=profile.memory.chunked_prefill_size or 4096,
    )


def default_mem_fraction(profile: Profile, shape: ModelShape, gpu_gib: float) -> float:
    """What SGLang takes when ``mem_fraction_static`` is unset.

    ``1 - (512 + 1.5 x chunk + 128 x ranks + 2 x largest graph batch) MiB / memory``, less for models with a vision
    part. Source: ``arg_groups/memory_hook.py:281-345, 417-462``, without the few MiB of prefill graphs.
    """
    mib = gpu_gib * 1024
    graphs = 0 if profile.kernels.cuda_graph is False else 2 * (profile.kernels.cuda_graph_max_bs or 48)
    chunk = max(profile.memory.chunked_prefill_size or 4096, 2048)
    reserve = 512 + 1.5 * chunk + 128 * profile.parallel.tp_size + graphs
    if mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    fraction = (mib - reserve) / mib
    if shape.vision is not None:
        layers = shape.vision.num_hidden_layers or 24
        complexity = layers * shape.vision.hidden**2 / (24 * 1024**2)
        fraction *= 0.95 * min(1.05, max(0.8, 1 - 0.1 * (complexity - 1)))
    return round(fraction, 3)


def device_pools(profile: Profile, shape: ModelShape, gpu_gib: float | None, weight_bytes: int) -> DevicePools:
    """L1 of one rank; ``weight_bytes`` are those of all ranks.

    ``budget = free x mem_fraction - weights/tp``; of it states and speculation's scratch take theirs, KV gets the rest.
    Source: ``mem_cache/kv_cache_configurator.py:2998-3050, 3221-3386``. Without GPU memory the profile must fix both
    pools. Raises :class:`DoesNotFit`.
    """
    unit = unit_of(profile, shape)
    memory = profile.memory
    given = memory.mem_fraction_static
    budget = fraction = None
    if gpu_gib is not None:
        fraction = given or default_mem_fraction(profile, shape, gpu_gib)
        budget = int((gpu_gib - CONTEXT_GIB) * GIB * fraction - weight_bytes / unit.tp)
        if budget <= 0:
            raise DoesNotFit(
                f"weights of {weight_bytes / unit.tp / GB:.1f} GB a GPU leave nothing of "
                f"{(gpu_gib - CONTEXT_GIB) * GIB * fraction / GB:.1f} GB ({fraction:.0%} of {gpu_gib:g} GiB)"
            )
    elif memory.max_total_tokens is None:
        raise DoesNotFit("neither GPU memory nor max_total_tokens is known")
    slots, scratch = _states(profile, unit, budget)
    requests = _requests(profile, slots, unit)
    pool = (slots + 1) * unit.state_bytes if slots else 0
    tokens = memory.max_total_tokens
    if budget is not None:
        fitting = (budget - scratch - pool) // unit.kv_bytes
        if fitting <= 0:
            raise DoesNotFit(f"{slots} states and their scratch take all of the {budget / GB:.1f} GB for cache pools")
        tokens = min(fitting, tokens or fitting)
    tokens = (tokens or 0) // unit.page_tokens * unit.page_tokens
    return DevicePools(
        tier=Tier(kv_tokens=tokens, state_slots=slots, kv_bytes=tokens * unit.kv_bytes, state_bytes=pool),
        budget_bytes=budget,
        scratch_bytes=scratch,
        requests=requests,
        mem_fraction=fraction,
        fraction_is_default=given is None,
    )


def host_pool(profile: Profile, unit: Unit, device: Tier, host_gib: float | None) -> Tier | None:
    """L2 of one rank; ``None`` without HiCache. ``host_gib`` is the machine's RAM.

    ``size_gb`` (10^9 bytes a rank) is split in proportion to the device pools' bytes; a ratio multiplies each. Either
    way states and tokens keep the device's proportion, and each pool is rounded up by a page. Source:
    ``hybrid_cache/hybrid_pool_assembler.py:239, 1316``, ``pool_host/base.py:218-229``, ``pool_host/mamba.py:166-174``.
    """
    hicache = profile.hicache
    if not hicache.enabled:
        return None
    whole = device.kv_bytes + device.state_bytes
    if hicache.size_gb is not None:
        factor = hicache.size_gb * GB / whole if whole else 0.0
        return _rounded_up(unit, device.kv_bytes * factor / unit.kv_bytes, _slots(unit, device.state_bytes * factor))
    factor = hicache.ratio or DEFAULT_RATIO
    if hicache.ratio is None and host_gib is not None and whole:
        room = max(0.0, host_gib - HOST_RESERVE_GIB) * GIB * HOST_MEMORY_FRACTION / unit.tp
        factor = min(factor, room / whole)
    return _rounded_up(unit, device.kv_tokens * factor, device.state_slots * factor)


def host_per_gb(unit: Unit, device: Tier) -> Tier:
    """What 10^9 bytes of host memory on one rank hold, in the device's proportion."""
    whole = device.kv_bytes + device.state_bytes
    kv, states = (GB * part / whole if whole else 0.0 for part in (device.kv_bytes, device.state_bytes))
    return _tier(unit, int(kv / unit.kv_bytes), int(_slots(unit, states)))


def disk_tier(profile: Profile, unit: Unit) -> DiskTier | None:
    """L3; ``None`` without it or without a cap, with which it is as large as the disk.

    One file a page and rank, one a state and rank; a state for each prefill chunk. Source: ``mem_cache/
    hicache_storage.py:822``.
    """
    if profile.l3.backend is None or profile.l3.max_size_gb is None:
        return None
    per_token = (unit.kv_bytes + unit.state_bytes_per_token) * unit.tp
    files_per_token = unit.tp * (1 / unit.page_tokens + (1 / unit.chunk_tokens if unit.state_bytes else 0))
    tokens = profile.l3.max_size_gb * GB / per_token
    return DiskTier(
        kv_tokens=int(tokens) // unit.page_tokens * unit.page_tokens,
        files=int(tokens * files_per_token),
        tokens_per_gb=int(GB / per_token),
        files_per_gb=int(GB / per_token * files_per_token),
    )


def _slots(unit: Unit, state_bytes: float) -> float:
    return state_bytes / unit.state_bytes if unit.state_bytes else 0.0


def _rounded_up(unit: Unit, tokens: float, slots: float) -> Tier:
    pages = int(tokens) // unit.page_tokens + 1
    return _tier(unit, pages * unit.page_tokens, int(slots) + 1 if unit.state_bytes else 0)


def _tier(unit: Unit, tokens: int, slots: int) -> Tier:
    return Tier(
        kv_tokens=tokens, state_slots=slots, kv_bytes=tokens * unit.kv_bytes, state_bytes=slots * unit.state_bytes
    )


def _states(profile: Profile, unit: Unit, budget: int | None) -> tuple[int, int]:
    """State slots, and bytes of speculation's scratch: the states of each draft token of each request.

    With neither ``max_cache_size`` nor memory (a CPU) there is nothing to size by: 0 slots.
    """
    if not unit.state_bytes:
        return 0, 0
    drafts = _draft_tokens(profile)
    per_request = state_slots_per_request(profile)
    slots = profile.mamba.max_cache_size
    if slots is None:
        if budget is None:
            return 0, 0
        share = profile.mamba.full_memory_ratio or DEFAULT_STATE_SHARE
        states = budget * share / (1 + share) - unit.state_bytes * (1 + drafts)
        slots = max(0, int(states // (unit.state_bytes * (1 + drafts / per_request))))
    scratch = unit.state_bytes * (_requests(profile, slots, unit) + 1) * drafts if drafts else 0
    return slots, scratch


def _requests(profile: Profile, slots: int, unit: Unit) -> int:
    """``max_running_requests``, capped by states. Source: ``kv_cache_configurator.py:3105-3158``."""
    wanted = profile.memory.max_running_requests or (48 if profile.speculative.algorithm else 2048)
    return min(wanted, slots // state_slots_per_request(profile)) if unit.state_bytes else wanted


def _draft_tokens(profile: Profile) -> int:
    """Per request and step; SGLang's defaults are 3 steps and 4 tokens (``speculative_hook.py:1430``)."""
    draft = profile.speculative
    if draft.algorithm is None:
        return 0
    return draft.num_draft_tokens or (draft.num_steps or 3) + 1


def _has_draft_layers(profile: Profile) -> bool:
    draft = profile.speculative
    return (draft.algorithm or "").upper() in DRAFTS_IN_WEIGHTS and draft.draft_model_path is None


def _itemsize(dtype: str, sizes: Mapping[str, int] = _ITEMSIZE) -> int:
    """``auto`` is 16 bits for every model that has states."""
    return sizes.get(str(dtype), 2)

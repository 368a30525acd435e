"""HiCache's host pools without an accelerator: no pinned memory, and copies by torch."""

from __future__ import annotations

from typing import Any

import torch
from sgl_kernel import kvcacheio
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.pool_host import common, mamba, mha
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

_COPIES = ("transfer_kv_direct", "transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_direct_lf_pf")


def register() -> None:
    # SGLang binds these names on GPUs only, so there is nothing that a hook could replace.
    for module in (mha, mamba, memory_pool_host):
        for name in _COPIES:
            setattr(module, name, getattr(kvcacheio, name))
    common.ALLOC_MEMORY_FUNCS["cpu"] = allocate
    if not torch.accelerator.is_available():
        HookRegistry.register("torch.Tensor.pin_memory", pin_memory, HookType.REPLACE)
        for pool in ("mha.MHATokenToKVPoolHost", "mamba.MambaPoolHost"):
            HookRegistry.register(f"sglang.srt.mem_cache.pool_host.{pool}.__init__", unpin, HookType.AFTER)


def allocate(
    dims: tuple[int, ...],
    dtype: Any,
    device: str,
    pin_memory: bool,
    allocator: Any,
    registration_granularity_bytes: int | None = None,
) -> Tensor:
    """Plain memory; SGLang would register it with CUDA."""
    return allocator.allocate(dims, dtype=dtype, device=device)


def pin_memory(tensor: Tensor, *_: object, **__: object) -> Tensor:
    return tensor


def unpin(_: None, pool: Any, *args: object, **options: object) -> None:
    pool.pin_memory = False

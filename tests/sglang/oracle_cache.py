"""Builds SGLang's own cache on the CPU, as its scheduler does: the oracle driver's half that is done once.

Runs inside the engine's environment. Nothing of ours is imported but the stand-ins for kernels.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any
from unittest import TestCase, mock

from governor_sglang_cpu import host_pool, page_hash  # type: ignore[import-not-found]
from sglang.srt.plugins import load_plugins

for part in (host_pool, page_hash):
    part.register()  # our plugin does that in schedulers only
load_plugins()
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheFile  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType  # noqa: E402
from sglang.srt.runtime_context import get_parallel  # noqa: E402
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # noqa: E402

_test_utils = ModuleType("sglang.test.test_utils")
_test_utils.CustomTestCase = TestCase  # type: ignore[attr-defined]  # the real module needs `datasets`
sys.modules.setdefault("sglang.test.test_utils", _test_utils)
_inspector = ModuleType("sglang.test.kits.unified_radix_cache.rust_unified_tree_core_inspector")
sys.modules[_inspector.__name__] = _inspector
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore  # noqa: E402

_inspector.RustUnifiedTreeCoreInspector = RustUnifiedTreeCore  # type: ignore[attr-defined]  # the wheel lacks it
from sglang.test.kits.unified_radix_cache import fixtures  # noqa: E402
from sglang.test.kits.unified_radix_cache.config import CacheConfig  # noqa: E402

CHUNK = 64
"""Of the gated delta rule's kernels."""
CONTEXT = 16384
_KEPT = ExitStack()


@dataclass(frozen=True)
class Pools:
    """What to build."""

    page_tokens: int
    device_tokens: int
    device_slots: int
    host_ratio: float
    has_storage: bool
    host_mode: str
    write_policy: str
    strategy: str
    eviction: str
    track_interval_tokens: int
    prefetch_tokens: int
    states_per_path: int
    core: str


def build(pools: Pools) -> tuple[Any, Any, Any]:
    """The cache, its allocator of KV and its pool of requests, as the scheduler makes them."""
    states = pools.device_slots > 0
    buffers = pools.strategy == "extra_buffer"
    config = CacheConfig(
        page_size=pools.page_tokens,
        components=(ComponentType.FULL, ComponentType.MAMBA) if states else (ComponentType.FULL,),
        enable_mamba_extra_buffer=states and buffers,
        mamba_cache_size=pools.device_slots,
        mamba_intermediate_size=4,
        mamba_num_heads=1,
        mamba_head_dim=4,
        mamba_state_size=2,
        mamba_conv_kernel=2,
        num_layers=2 if states else 1,
        full_attention_layer_ids=(1,) if states else (0,),
        head_num=1,
        head_dim=2,
        kv_size=pools.device_tokens,
        max_num_reqs=64,
        max_context_len=CONTEXT,
        eviction_policy=pools.eviction,
    )
    fixtures.UnifiedTreeCoreInspectionInterface = object
    fixtures.TREE_CORE_TEST_BACKEND = pools.core
    paged = pools.page_tokens > 1

    def allocator(**given: Any) -> Any:
        if paged:
            return PagedTokenToKVPoolAllocator(page_size=pools.page_tokens, **given)
        return TokenToKVPoolAllocator(**given)

    capped = partial(ServerArgs, mamba_max_states_per_path=pools.states_per_path)
    with (
        mock.patch.object(fixtures, "TokenToKVPoolAllocator", allocator),
        mock.patch.object(fixtures, "ServerArgs", capped),
    ):
        cache, kv, rows = fixtures.build_fixture(config)
    flags: dict[str, Any] = {
        "model_path": "dummy",
        "page_size": pools.page_tokens,
        "mamba_track_interval": pools.track_interval_tokens,
        "mamba_radix_cache_strategy": pools.strategy,
        "mamba_max_states_per_path": pools.states_per_path,
    }
    if pools.host_ratio:
        flags |= {
            "hicache_ratio": pools.host_ratio,
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "page_first_direct",
            "hicache_write_policy": pools.write_policy,
            "hicache_host_memory_mode": pools.host_mode,
        }
    if pools.has_storage:
        _KEPT.close()
        _KEPT.enter_context(get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1))
        flags |= {
            "hicache_storage_backend": "file",
            "hicache_storage_backend_extra_config": json.dumps({"prefetch_threshold": pools.prefetch_tokens}),
            "hicache_storage_prefetch_policy": "wait_complete",
        }
        keep_files_in_memory()
    arguments = ServerArgs(**flags)
    arguments._mamba_cache_chunk_size = max(CHUNK, pools.page_tokens)
    set_global_server_args_for_scheduler(arguments)
    if pools.host_ratio:
        cache.init_hicache(arguments, cache.cache_init_params)
        fixtures.drop_hicache_atexit_pin(cache)
    return cache, kv, rows


def keep_files_in_memory() -> None:
    """The reference backend, but for the disk: a page of one token is one file."""
    files: dict[str, Any] = {}

    def put(self: Any, key: str, value: Any = None, *_: Any, **__: Any) -> bool:
        files.setdefault(self._get_suffixed_key(key), value.clone())
        return True

    def get(self: Any, key: str, target_location: Any, *_: Any) -> Any:
        found = files.get(self._get_suffixed_key(key))
        return None if found is None else target_location.copy_(found.view(target_location.dtype))

    def exists(self: Any, key: str) -> bool:
        return self._get_suffixed_key(key) in files

    def existing(self: Any, keys: list[str], transfers: Any = None) -> set[str]:
        names = {f"{self._get_component_key(key)}" for key in keys}
        names |= {self._get_component_key(key, transfer.name) for transfer in transfers or [] for key in keys}
        return {f"{name}.bin" for name in names if name in files}

    HiCacheFile.set, HiCacheFile.get, HiCacheFile.exists = put, get, exists
    HiCacheFile._collect_existing_component_keys = existing

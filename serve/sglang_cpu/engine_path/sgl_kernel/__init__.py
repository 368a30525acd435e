"""Torch stand-in for the CPU build of ``sgl_kernel``, which is not on PyPI.

It has what SGLang 0.5.23 imports with ``SGLANG_USE_CPU_ENGINE=1`` and what hybrid models call in the torch-native paths
that SGLang takes without AMX. Names that no such model calls can be imported; calling one raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from torch import Tensor

from . import elementwise, gated_delta

for _operators in (elementwise, gated_delta):
    _operators.register()


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    _pool_len: int,
) -> None:
    """Write each request's new cache slots, which lie one after another, into its row."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for request, start, end in rows:
        new = out_cache_loc[taken : taken + end - start]
        req_to_token[request, start:end] = new.to(req_to_token.dtype)
        taken += end - start


def _missing(name: str) -> Callable[..., NoReturn]:
    def call(*args: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return call


assign_draft_cache_locs_contiguous_cpu = _missing("assign_draft_cache_locs_contiguous_cpu")
assign_extend_cache_locs_cpu = _missing("assign_extend_cache_locs_cpu")
build_draft_decode_metadata_cpu = _missing("build_draft_decode_metadata_cpu")
build_tree_kernel_efficient_cpu = _missing("build_tree_kernel_efficient_cpu")
copy_all_layer_kv_cache_cpu = _missing("copy_all_layer_kv_cache_cpu")
fill_accept_out_cache_loc_cpu = _missing("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _missing("fill_bonus_tokens_cpu")
rotate_input_ids_cpu = _missing("rotate_input_ids_cpu")
verify_tree_greedy_cpu = _missing("verify_tree_greedy_cpu")

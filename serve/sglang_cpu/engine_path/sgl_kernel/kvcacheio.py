"""HiCache's copies between device and host pools, for ``--hicache-io-backend direct``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def transfer_kv_direct(
    src_layers: Sequence[Tensor],
    dst_layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int = 1,
) -> None:
    source, target = src_indices.long(), dst_indices.long()
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[target] = src[source]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int = 1,
) -> None:
    """Host ``[page, layer, token, ...]`` to device ``[slot, ...]``, one layer."""
    source, target = src_indices.long(), dst_indices.long()
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        dst[target] = src[source // page_size, layer_id, source % page_size]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int = 1,
) -> None:
    """Device to host, all layers: ``src_ptrs`` are the K layers, then the V layers."""
    source, target = src_indices.long(), dst_indices.long()
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, src in enumerate(src_ptrs):
        dst_ptrs[number // layers][target // page_size, number % layers, target % page_size] = src[source]

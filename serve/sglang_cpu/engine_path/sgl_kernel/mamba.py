"""The causal convolution in front of a gated-delta-net layer, and that layer's prefill."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .gated_delta import gated_delta_rule


def _activated(y: Tensor, activation: str | bool | None) -> Tensor:
    return functional.silu(y) if activation in (True, "silu", "swish") else y


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: Any = None,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = -1,
    **_: object,
) -> Tensor:
    """``x [dim, T]``: several sequences; ``conv_states [slot, dim, width - 1]`` is updated in place."""
    dim = x.shape[0]
    width = weight.shape[-1]
    kernel = weight.reshape(dim, 1, width).float()
    output = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        slot = number if cache_indices is None else int(cache_indices[number])
        if start == end or slot == pad_slot_id:
            continue
        new = x[:, start:end].float()
        if has_initial_state is not None and bool(has_initial_state[number]):
            before = conv_states[slot][:, -(width - 1) :].float()
        else:
            before = new.new_zeros(dim, width - 1)
        whole = torch.cat([before, new], 1)
        y = functional.conv1d(whole.unsqueeze(0), kernel, None if bias is None else bias.float(), groups=dim)[0]
        output[:, start:end] = _activated(y, activation).to(x.dtype)
        conv_states[slot][:, -(width - 1) :] = whole[:, -(width - 1) :].to(conv_states.dtype)
    return output


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    **_: object,
) -> Tensor:
    """``x [batch, dim]``, one token each. Raises :class:`NotImplementedError` for several."""
    if x.dim() == 3:
        raise NotImplementedError("several tokens at once have no stand-in")
    batch, dim = x.shape
    width = weight.shape[-1]
    slots = (torch.arange(batch) if conv_state_indices is None else conv_state_indices[:batch]).long()
    used = slots >= 0
    before = conv_state[slots.clamp(min=0)][:, :, -(width - 1) :].float()
    whole = torch.cat([before, x.float().unsqueeze(-1)], -1)
    y = (whole * weight.reshape(1, dim, width).float()).sum(-1)
    if bias is not None:
        y = y + bias.float()
    conv_state[slots[used]] = whole[used][:, :, 1:].to(conv_state.dtype)
    return _activated(y, activation).to(x.dtype)


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    initial_state_indices: Tensor | None = None,
    scale: float | None = None,
    **_: object,
) -> tuple[Tensor, None, Tensor]:
    return gated_delta_rule(
        q, k, v, g, beta, initial_state, initial_state_indices, cu_seqlens, scale, use_qk_l2norm_in_kernel
    )

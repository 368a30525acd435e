"""Norms, gates and routing of Qwen3-Next and Qwen3.5. Arguments are positional, as SGLang passes them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .operators import register_operators


def register() -> None:
    register_operators(
        fused_sigmoid_mul_cpu,
        fused_qk_gemma_rmsnorm_cpu,
        fused_qk_gemma_rmsnorm_with_gate_cpu,
        fused_qkvzba_split_reshape_cat_contiguous_cpu,
        fused_gdn_gating_cpu,
        fused_rmsnorm_gated_cpu,
        topk_softmax_cpu,
        topk_sigmoid_cpu,
    )


def _rms_norm(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """``plus_one``: Gemma's form, whose weights are stored less one."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (weight.float() + float(plus_one))).to(x.dtype)


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    x.mul_(torch.sigmoid(gate.float()).to(x.dtype).view_as(x))


def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    return (
        _rms_norm(q.reshape(-1, head_dim), q_weight, eps, plus_one=True),
        _rms_norm(k.reshape(-1, head_dim), k_weight, eps, plus_one=True),
    )


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``q_gate``: per head, the query and then its output gate."""
    pairs = q_gate.reshape(q_gate.shape[0], num_heads, 2 * head_dim)
    gate = pairs[..., head_dim:].reshape(-1, head_dim).contiguous()
    q, k = fused_qk_gemma_rmsnorm_cpu(pairs[..., :head_dim], k, q_weight, k_weight, eps, head_dim)
    return q, k, gate


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens = qkvz.shape[0]
    qkv_width = 2 * key_heads * key_dim + value_heads * value_dim
    return (
        qkvz[:, :qkv_width].contiguous(),
        qkvz[:, qkv_width:].reshape(tokens, value_heads, value_dim).contiguous(),
        ba[:, :value_heads].contiguous(),
        ba[:, value_heads:].contiguous(),
    )


def fused_gdn_gating_cpu(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Log decay and write strength."""
    decay = -a_log.float().exp() * functional.softplus(a.float() + dt_bias.float(), beta=1.0, threshold=20.0)
    return decay.unsqueeze(0), torch.sigmoid(b.float()).unsqueeze(0)


def fused_rmsnorm_gated_cpu(x: Tensor, weight: Tensor, z: Tensor, eps: float) -> Tensor:
    return (_rms_norm(x, weight, eps).float() * functional.silu(z.float())).to(x.dtype)


def topk_softmax_cpu(
    hidden_states: Tensor,
    gating_output: Tensor,
    topk: int,
    renormalize: bool,
    correction_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    weights, experts = gating_output.float().softmax(-1).topk(topk, -1)
    return _renormalized(weights, renormalize), experts.to(torch.int32)


def topk_sigmoid_cpu(
    hidden_states: Tensor,
    gating_output: Tensor,
    topk: int,
    renormalize: bool,
    correction_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    scores = gating_output.float().sigmoid()
    ranked = scores if correction_bias is None else scores + correction_bias
    experts = ranked.topk(topk, -1).indices
    return _renormalized(scores.gather(-1, experts), renormalize), experts.to(torch.int32)


def _renormalized(weights: Tensor, wanted: bool) -> Tensor:
    return weights / weights.sum(-1, keepdim=True) if wanted else weights

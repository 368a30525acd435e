"""The gated delta rule (Yang et al., "Gated Delta Networks", 2024): in chunks for prefill, one step for decode.

A head's state ``S`` is a matrix of value by key dimensions. A token decays it by ``exp(g)``, then moves what it holds
for key ``k`` towards ``v`` with strength ``beta``; the output is ``S q``.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional

from .operators import register_operators

_CHUNK = 64
"""Tokens handled at once; SGLang expects the state at the start of each such chunk."""


def register() -> None:
    register_operators(fused_sigmoid_gating_delta_rule_update_cpu)


def _unit(x: Tensor, wanted: bool) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) if wanted else x


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Tensor,
    slots: Tensor | None,
    cu_seqlens: Tensor,
    scale: float | None,
    unit_length: bool,
) -> tuple[Tensor, None, Tensor]:
    """Several sequences, one after another in the token dimension, bounded by ``cu_seqlens``.

    ``q, k [1, T, Hk, K]``, ``v [1, T, H, V]``, ``g, beta [1, T, H]``; ``states [slot, H, V, K]`` is updated in place, a
    negative slot is skipped. Returns the outputs ``[1, T, H, V]``, nothing, and ``[1, chunks, H, V, K]``: the state at
    the start of each chunk of each sequence.
    """
    tokens, heads, value_dim = v.shape[1:]
    key_heads, key_dim = q.shape[2:]
    scale = key_dim**-0.5 if scale is None else scale
    queries = _unit(q[0], unit_length).repeat_interleave(heads // key_heads, 1) * scale
    keys = _unit(k[0], unit_length).repeat_interleave(heads // key_heads, 1)
    values, decays, strengths = v[0].float(), g[0].float(), beta[0].float()
    outputs = torch.empty(tokens, heads, value_dim, dtype=torch.float32)
    at_chunk_starts: list[Tensor] = []
    bounds = cu_seqlens.tolist()
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        slot = number if slots is None else int(slots[number])
        if start == end or slot < 0:
            continue
        state = states[slot].float()
        for first in range(start, end, _CHUNK):
            at_chunk_starts.append(state.clone())
            part = slice(first, min(first + _CHUNK, end))
            outputs[part], state = _chunk(queries[part], keys[part], values[part], decays[part], strengths[part], state)
        states[slot] = state.to(states.dtype)
    if not at_chunk_starts:
        return outputs.unsqueeze(0).to(v.dtype), None, v.new_zeros(1, 0, heads, value_dim, key_dim)
    return outputs.unsqueeze(0).to(v.dtype), None, torch.stack(at_chunk_starts).unsqueeze(0).to(v.dtype)


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of ``L`` tokens: outputs ``[L, H, V]`` and the state after it.

    What a token writes depends on earlier writes of the same chunk; that is a unit lower triangular system.
    """
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    strength = beta.T.unsqueeze(-1)
    decay = g.cumsum(0).T
    from_start = decay.exp().unsqueeze(-1)
    between = (decay[:, :, None] - decay[:, None, :]).tril().exp().tril()
    coupling = ((k @ k.transpose(1, 2)) * between * strength).tril(-1)
    known = strength * (v - (from_start * k) @ state.transpose(1, 2))
    identity = torch.eye(k.shape[1])
    written = torch.linalg.solve_triangular(identity + coupling, known, upper=False, unitriangular=True)
    output = (from_start * q) @ state.transpose(1, 2) + ((q @ k.transpose(1, 2)) * between) @ written
    to_end = (decay[:, -1:] - decay).exp().unsqueeze(-1)
    state = state * decay[:, -1].exp()[:, None, None] + (written * to_end).transpose(1, 2) @ k
    return output.transpose(0, 1), state


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,  # noqa: N803 - passed by this name
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    scale: float | None = None,
    **unused: object,
) -> Tensor:
    """One token of each request. Raises :class:`NotImplementedError` for speculative decoding."""
    if unused.get("disable_state_update") or unused.get("intermediate_states_buffer") is not None:
        raise NotImplementedError("verification of drafts has no stand-in")
    heads, value_dim = v.shape[2:]
    key_heads, key_dim = q.shape[2:]
    batch = v.shape[0] * v.shape[1]
    scale = key_dim**-0.5 if scale is None else scale
    repeats = heads // key_heads
    unit = use_qk_l2norm_in_kernel
    queries = _unit(q, unit).reshape(batch, key_heads, key_dim).repeat_interleave(repeats, 1) * scale
    keys = _unit(k, unit).reshape(batch, key_heads, key_dim).repeat_interleave(repeats, 1)
    step = functional.softplus(a.reshape(batch, heads).float() + dt_bias.float(), softplus_beta, softplus_threshold)
    decay = (-A_log.float().exp() * step).exp()[:, :, None, None]
    strength = torch.sigmoid(b.reshape(batch, heads).float()).unsqueeze(-1)
    slots = initial_state_indices[:batch].long()
    used = slots >= 0
    state = initial_state_source[slots.clamp(min=0)].float() * decay
    held = torch.einsum("bhvk,bhk->bhv", state, keys)
    written = (v.reshape(batch, heads, value_dim).float() - held) * strength
    state = state + written.unsqueeze(-1) * keys.unsqueeze(-2)
    initial_state_source[slots[used]] = state[used].to(initial_state_source.dtype)
    return torch.einsum("bhvk,bhk->bhv", state, queries).reshape(v.shape).to(v.dtype)

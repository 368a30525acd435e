"""Torch in place of kernels that need Triton or AMX, in the scheduler's process."""

from __future__ import annotations

import sglang.srt.layers.attention.hybrid_linear_attn_backend
import sglang.srt.models.qwen2_moe  # noqa: F401 - binds the names that are replaced
import torch
from sglang.kernels.ops.attention.fla import fused_norm_gate, layernorm_gated
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

_STATES = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"
_ELEMENTWISE = "sglang.kernels.ops.elementwise.elementwise"


def register() -> None:
    # The gated norm's torch operator is taken only with AMX; otherwise it is a Triton kernel.
    for module in (fused_norm_gate, layernorm_gated):
        if not hasattr(module, "_use_cpu"):
            raise AttributeError(f"{module.__name__} has no _use_cpu")
        module._use_cpu = True
    replacements = {
        f"{_STATES}.track_mamba_states_if_needed": track_one_layer,
        f"{_STATES}.track_mamba_states_all_layers": track_all_layers,
        f"{_ELEMENTWISE}.fused_gate_sigmoid_mul": gated,
        f"{_ELEMENTWISE}.fused_gate_sigmoid_mul_add": add_gated,
    }
    for target, function in replacements.items():
        HookRegistry.register(target, function, HookType.REPLACE)


def track_one_layer(
    conv_states: Tensor,
    ssm_states: Tensor,
    cache_indices: Tensor,
    mamba_track_mask: Tensor,
    mamba_track_indices: Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy the states of marked requests from their slots to their checkpoint slots."""
    slots = _tracked(cache_indices, mamba_track_mask, mamba_track_indices, batch_size, check_freed_slots)
    if slots is not None:
        source, target = slots
        conv_states[target] = conv_states[source]
        ssm_states[target] = ssm_states[source]


def track_all_layers(
    conv_states_pool: Tensor,
    ssm_states_pool: Tensor,
    cache_indices: Tensor,
    mamba_track_mask: Tensor,
    mamba_track_indices: Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """The same for pools whose first dimension is the layer."""
    slots = _tracked(cache_indices, mamba_track_mask, mamba_track_indices, batch_size, check_freed_slots)
    if slots is not None:
        source, target = slots
        conv_states_pool[:, target] = conv_states_pool[:, source]
        ssm_states_pool[:, target] = ssm_states_pool[:, source]


def _tracked(
    cache_indices: Tensor, mask: Tensor, track_indices: Tensor, batch_size: int, check_freed_slots: bool
) -> tuple[Tensor, Tensor] | None:
    rows = mask[:batch_size].nonzero(as_tuple=True)[0]
    if not rows.numel():
        return None
    source, target = cache_indices[rows].long(), track_indices[rows].long()
    if check_freed_slots:
        in_use = (source >= 0) & (target >= 0)
        source, target = source[in_use], target[in_use]
    return source, target


def gated(hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor) -> Tensor:
    """The shared expert's output times its gate."""
    gate = torch.sigmoid((hidden_states.float() @ gate_weight.float()).unsqueeze(-1))
    return (gate * shared_output.float()).to(shared_output.dtype)


def add_gated(hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor, final_hidden_states: Tensor) -> None:
    final_hidden_states.add_(gated(hidden_states, gate_weight, shared_output))

"""Runs in the engine's interpreter: the stand-in kernels against the recurrence written out token by token."""

from __future__ import annotations

import sgl_kernel  # noqa: F401 - registers the operators
import torch
from sgl_kernel.mamba import causal_conv1d_fn_cpu, causal_conv1d_update_cpu, chunk_gated_delta_rule_cpu

HEADS, KEY_HEADS, KEY, VALUE = 4, 2, 16, 24
LENGTHS = (150, 1, 64)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def check_delta_rule() -> None:
    torch.manual_seed(1)
    tokens = sum(LENGTHS)
    q, k = torch.randn(1, tokens, KEY_HEADS, KEY), torch.randn(1, tokens, KEY_HEADS, KEY)
    v = torch.randn(1, tokens, HEADS, VALUE)
    g, beta = -torch.rand(1, tokens, HEADS), torch.rand(1, tokens, HEADS)
    slots = torch.tensor([2, 0, 1])
    before = torch.randn(3, HEADS, VALUE, KEY)
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])

    wanted = torch.empty_like(v)
    after = before.clone()
    for number, slot in enumerate(slots.tolist()):
        state = before[slot].clone()
        for at in range(int(bounds[number]), int(bounds[number + 1])):
            key = unit(k[0, at]).repeat_interleave(HEADS // KEY_HEADS, 0)
            query = unit(q[0, at]).repeat_interleave(HEADS // KEY_HEADS, 0) * KEY**-0.5
            state = state * g[0, at].exp()[:, None, None]
            held = torch.einsum("hvk,hk->hv", state, key)
            state = state + ((v[0, at] - held) * beta[0, at][:, None])[:, :, None] * key[:, None, :]
            wanted[0, at] = torch.einsum("hvk,hk->hv", state, query)
        after[slot] = state

    states = before.clone()
    output, _, at_starts = chunk_gated_delta_rule_cpu(q, k, v, g, beta, states, bounds, initial_state_indices=slots)
    torch.testing.assert_close(output, wanted, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(states, after, atol=2e-4, rtol=2e-4)
    assert at_starts.shape == (1, 3 + 1 + 1, HEADS, VALUE, KEY)
    torch.testing.assert_close(at_starts[0, 0], before[2])


def check_one_token() -> None:
    """Decoding token by token ends where prefilling them at once does."""
    torch.manual_seed(3)
    tokens = 70
    a_log, dt_bias = torch.rand(HEADS), torch.rand(HEADS)
    q, k = torch.randn(1, tokens, KEY_HEADS, KEY), torch.randn(1, tokens, KEY_HEADS, KEY)
    v, a, b = torch.randn(1, tokens, HEADS, VALUE), torch.randn(tokens, HEADS), torch.randn(tokens, HEADS)
    g, beta = torch.ops.sgl_kernel.fused_gdn_gating_cpu(a_log, a, b, dt_bias)
    at_once = torch.zeros(2, HEADS, VALUE, KEY)
    slot = torch.tensor([1])
    wanted, _, _ = chunk_gated_delta_rule_cpu(
        q, k, v, g, beta, at_once, torch.tensor([0, tokens]), initial_state_indices=slot
    )
    stepped = torch.zeros_like(at_once)
    for at in range(tokens):
        here = slice(at, at + 1)
        output = torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu(
            a_log, dt_bias, q[:, here], k[:, here], v[:, here], a[here], b[here], stepped, slot
        )
        torch.testing.assert_close(output, wanted[:, here], atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(stepped, at_once, atol=2e-4, rtol=2e-4)


def check_convolution() -> None:
    torch.manual_seed(2)
    dim, width, tokens = 6, 4, 20
    x, weight, bias = torch.randn(dim, tokens), torch.randn(dim, width), torch.randn(dim)
    start = torch.zeros(1, dim, width - 1)
    at_once = start.clone()
    whole = causal_conv1d_fn_cpu(
        x,
        weight,
        bias,
        at_once,
        torch.tensor([0, tokens]),
        cache_indices=torch.tensor([0]),
        has_initial_state=torch.tensor([True]),
    )
    stepped = start.clone()
    steps = [
        causal_conv1d_update_cpu(
            x[:, at].unsqueeze(0), stepped, weight, bias, "silu", conv_state_indices=torch.tensor([0])
        )[0]
        for at in range(tokens)
    ]
    torch.testing.assert_close(whole, torch.stack(steps, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(at_once, stepped)


if __name__ == "__main__":
    check_delta_rule()
    check_one_token()
    check_convolution()

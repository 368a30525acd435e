"""How long an engine's work takes on one machine: few coefficients, each with a meaning. Pure.

The forms: a prefill costs its tokens and, for attention, the square of the depth it reaches (1 % at 120K on the machine
of the field's measurements); a decode step costs a constant (weights), its requests, and the KV it reads; a copy costs
its tokens. ``docs/design/twin-cost.md`` has the fits and their residuals.
"""

from __future__ import annotations

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds. Tokens are those of one context, whatever the number of ranks."""

    prefill_token_s: float
    """``a`` of ``t = a n + b n^2``."""
    prefill_square_s: float
    """``b``."""
    prefill_step_s: float = 0.0
    """Of each forward pass of a prefill."""
    decode_step_s: float
    """Of a decode step with nobody in it: the weights are read."""
    decode_request_s: float
    """More for each request in the step."""
    decode_kv_token_s: float
    """More for each token of KV that the step reads."""
    request_s: float = 0.0
    """From the request's arrival to the queue, and from the first token to the client; others go on meanwhile."""
    request_token_s: float = 0.0
    """More for each token of the prompt."""
    host_read_token_s: float = 0.0
    """L2 to L1."""
    host_read_s: float = 0.0
    """More for each such copy."""
    host_write_token_s: float = 0.0
    """L1 to L2; nobody waits for it, but the pages are not free before."""
    storage_read_token_s: float = 0.0
    """L3 to L2."""
    storage_read_s: float = 0.0
    """More for each such copy: the question what there is."""
    storage_write_token_s: float = 0.0

    def prefill_s(self, start: int, tokens: int) -> float:
        """One forward pass over ``tokens`` behind a context of ``start``."""
        end = start + tokens
        squares = end * end - start * start
        return self.prefill_step_s + self.prefill_token_s * tokens + self.prefill_square_s * squares

    def decode_s(self, requests: int, kv_tokens: int, steps: int = 1, tokens_a_step: float = 0.0) -> float:
        """``steps`` decode steps of ``requests``, whose contexts hold ``kv_tokens`` together before the first and
        ``tokens_a_step`` more after each."""
        read = kv_tokens * steps + tokens_a_step * steps * (steps - 1) / 2
        return (self.decode_step_s + self.decode_request_s * requests) * steps + self.decode_kv_token_s * read

    def arrival_s(self, prompt_tokens: int) -> float:
        """Before a request is in the queue."""
        return self.request_s + self.request_token_s * prompt_tokens

    def host_read_time(self, tokens: int) -> float:
        return self.host_read_s + self.host_read_token_s * tokens if tokens else 0.0

    def storage_read_time(self, tokens: int) -> float:
        return self.storage_read_s + self.storage_read_token_s * tokens

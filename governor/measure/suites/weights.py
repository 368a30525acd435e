"""How long parts of a suite take beside each other, for the time that is left. Nothing measured depends on it."""

from __future__ import annotations

_TOKEN_S = 5.4e-4
_SQUARE_S = 3.5e-9
_WRITTEN_S = 0.012
"""A machine with two consumer GPUs and a model of 27B: `rx7900xtx-tp2` of the twin."""


def prefill_weight(tokens: int) -> float:
    return 0.1 + _TOKEN_S * tokens + _SQUARE_S * tokens**2


def decode_weight(tokens: int) -> float:
    return _WRITTEN_S * tokens

"""Puts functions where SGLang looks for compiled operators: on ``torch.ops.sgl_kernel``, as plain attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def register_operators(*functions: Callable[..., Any]) -> None:
    """Under their own names."""
    for function in functions:
        setattr(torch.ops.sgl_kernel, function.__name__, function)

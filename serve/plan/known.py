"""Shapes of models that profiles name, so that a plan needs no download. Data.

Sources: the ``config.json`` files of the named repositories. A model that is not here is given by its folder.
"""

from __future__ import annotations

from serve.plan.shape import ModelShape, Vision

_QWEN_VISION = Vision(depth=27, hidden=1152, intermediate=4304)

QWEN_27B = ModelShape(
    name="qwen3.8-27b",
    full_layers=16,
    linear_layers=48,
    draft_layers=1,
    hidden=5120,
    intermediate=17408,
    vocab=248_320,
    heads=24,
    kv_heads=4,
    head_dim=256,
    gated_attention=True,
    linear_key_heads=16,
    linear_value_heads=48,
    linear_key_dim=128,
    linear_value_dim=128,
    conv_kernel=4,
    vision=_QWEN_VISION,
    window_tokens=262_144,
)
"""Qwen3.5-27B, Qwen3.6-27B and Qwen3.8-27B share it."""

TINY_HYBRID = ModelShape(
    name="tiny-hybrid",
    full_layers=1,
    linear_layers=3,
    hidden=128,
    intermediate=256,
    vocab=32_000,
    heads=4,
    kv_heads=2,
    head_dim=32,
    gated_attention=True,
    linear_key_heads=2,
    linear_value_heads=4,
    linear_key_dim=32,
    linear_value_dim=32,
    conv_kernel=4,
    window_tokens=131_072,
)
"""What ``sglang-cpu`` installs."""

SMOLLM2 = ModelShape(
    name="smollm2-135m",
    full_layers=30,
    linear_layers=0,
    hidden=576,
    intermediate=1536,
    vocab=49_152,
    heads=9,
    kv_heads=3,
    head_dim=64,
    tied_embeddings=True,
    window_tokens=8192,
)
"""The embedded engine's own model."""

_BY_WORD = {
    "qwen3.8-27b": QWEN_27B,
    "qwen3.6-27b": QWEN_27B,
    "qwen3.5-27b": QWEN_27B,
    "tiny-hybrid": TINY_HYBRID,
    "smollm2-135m": SMOLLM2,
}
NAMES = tuple(_BY_WORD)


def known_shape(name: str) -> ModelShape | None:
    """By a hub name, a served name or a folder's name that contains one of :data:`NAMES`."""
    low = name.lower()
    return next((shape for word, shape in _BY_WORD.items() if word in low), None)

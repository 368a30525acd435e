"""What of a model decides memory: layers, heads, widths, read from its Hugging Face ``config.json``. Pure.

Covers dense attention models and the hybrids of the Qwen3-Next, 3.5, 3.6 and 3.8 families (gated delta-net layers next
to full attention), dense and mixture-of-experts.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

FULL, LINEAR = "full_attention", "linear_attention"
UNQUANTISED_BYTES = 2
"""Quantised checkpoints keep embeddings, output head, vision part and small projections in 16 bits."""


class UnknownShape(ValueError):
    """A ``config.json`` that lacks what a plan needs; the message names it."""


class Vision(msgspec.Struct, frozen=True, rename={"intermediate": "intermediate_size", "hidden": "hidden_size"}):
    """Vision part, as far as its weights and SGLang's memory reserve go."""

    depth: int = 0
    hidden: int = 0
    intermediate: int = 0
    num_hidden_layers: int | None = None


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the whole model, before tensor parallelism."""

    name: str
    full_layers: int
    """Layers with KV."""
    linear_layers: int
    """Gated-delta-net layers, with a state of constant size."""
    draft_layers: int = 0
    """Layers that predict further tokens (MTP); each has KV when speculation uses them."""
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    gated_attention: bool = False
    """The query projection is twice as wide: half of it gates the output."""
    tied_embeddings: bool = False
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    conv_kernel: int = 0
    ssm_dtype: str = "float32"
    experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    vision: Vision | None = None
    window_tokens: int | None = None
    """Longest context that the model was made for."""
    weight_bits: float | None = None
    """Bits of a quantised weight with its scales; ``None``: the configuration does not say."""

    @property
    def is_hybrid(self) -> bool:
        return self.linear_layers > 0

    def kv_bytes_per_token(self, *, tp: int = 1, itemsize: int = 2, with_draft: bool = False) -> int:
        """Bytes of one token's keys and values on one rank.

        ``layers x kv_heads/tp x head_dim x 2 x itemsize``; with fewer heads than ranks each rank holds one. Source:
        SGLang ``mem_cache/kv_cache_configurator.py``; 34,816 bytes at TP=2 are what the published host pools of
        Qwen3.8-27B with MTP show (11.11 GB for 319,193 tokens).
        """
        layers = self.full_layers + (self.draft_layers if with_draft else 0)
        return layers * max(1, self.kv_heads // tp) * self.head_dim * 2 * itemsize

    def state_bytes(self, *, tp: int = 1, ssm_itemsize: int = 4, conv_itemsize: int = 2) -> int:
        """Bytes of one state slot on one rank: the recurrent matrix and the last inputs of the convolution.

        ``layers x (value_heads x key_dim x value_dim x ssm + conv_width x (kernel-1) x conv) / tp``. Source: SGLang
        ``configs/mamba_utils.py:116``; 153,944,064 bytes for Qwen3.8-27B in float32 (SGLang pull request 35065).
        """
        matrix = self.linear_value_heads * self.linear_key_dim * self.linear_value_dim
        tail = self._conv_width * max(0, self.conv_kernel - 1)
        return self.linear_layers * (matrix * ssm_itemsize + tail * conv_itemsize) // tp

    @property
    def _conv_width(self) -> int:
        return 2 * self.linear_key_heads * self.linear_key_dim + self.linear_value_heads * self.linear_value_dim

    @property
    def quantisable_parameters(self) -> int:
        """Large projections of the layers."""
        attention = self._attention_parameters
        value_width = self.linear_value_heads * self.linear_value_dim
        linear = self.hidden * (self._conv_width + value_width) + value_width * self.hidden
        layers = self.full_layers + self.linear_layers
        return self.full_layers * attention + self.linear_layers * linear + layers * self._mlp_parameters

    @property
    def draft_parameters(self) -> int:
        """Of the MTP layers; they share the embeddings."""
        one = 2 * self.hidden * self.hidden + self._attention_parameters + self._mlp_parameters
        return self.draft_layers * one

    @property
    def unquantised_parameters(self) -> int:
        """Embeddings, output head, vision part, gates of the linear layers."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        gates = self.linear_layers * (self.hidden * 2 * self.linear_value_heads + self._conv_width * self.conv_kernel)
        vision = 0
        if self.vision is not None:
            width, inner = self.vision.hidden, self.vision.intermediate
            merged = 4 * width
            vision = self.vision.depth * (4 * width * width + 2 * width * inner) + merged * (merged + self.hidden)
        return embeddings + gates + vision

    @property
    def parameters(self) -> int:
        return self.quantisable_parameters + self.draft_parameters + self.unquantised_parameters

    def weight_bytes(self, bits: float) -> int:
        """Estimate of the checkpoint's size in bytes, all ranks together; ``bits`` is that of a large projection.

        Below 8 bits the MTP layers stay in 16, as published GPTQ, AutoRound and NVFP4 checkpoints have them.
        """
        draft_bits = bits if bits >= 8 else 16
        quantised = self.quantisable_parameters * bits + self.draft_parameters * draft_bits
        return int(quantised / 8) + self.unquantised_parameters * UNQUANTISED_BYTES

    @property
    def _attention_parameters(self) -> int:
        query = self.heads * self.head_dim
        width = query * (2 if self.gated_attention else 1) + 2 * self.kv_heads * self.head_dim
        return self.hidden * width + query * self.hidden

    @property
    def _mlp_parameters(self) -> int:
        if not self.experts:
            return 3 * self.hidden * self.intermediate
        inner = self.experts * self.expert_intermediate + self.shared_intermediate
        return 3 * self.hidden * inner + self.hidden * self.experts


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Quantization(msgspec.Struct, frozen=True, kw_only=True):
    quant_method: str = ""
    quant_algo: str = ""
    bits: _Positive | None = None
    group_size: int | None = None
    """-1: one group a column."""


class _Text(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a ``config.json`` that a plan needs; all others are left alone."""

    num_hidden_layers: _Positive
    hidden_size: _Positive
    num_attention_heads: _Positive
    vocab_size: _Positive
    intermediate_size: _Count = 0
    num_key_value_heads: _Positive | None = None
    head_dim: _Positive | None = None
    layer_types: list[str] | None = None
    full_attention_interval: _Positive | None = None
    linear_conv_kernel_dim: _Count = 0
    linear_key_head_dim: _Count = 0
    linear_value_head_dim: _Count = 0
    linear_num_key_heads: _Count = 0
    linear_num_value_heads: _Count = 0
    mamba_ssm_dtype: str | None = None
    mtp_num_hidden_layers: _Count = 0
    num_experts: _Count = 0
    moe_intermediate_size: _Count = 0
    shared_expert_intermediate_size: _Count = 0
    max_position_embeddings: _Positive | None = None
    tie_word_embeddings: bool = False
    quantization_config: _Quantization | None = None


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the text part, where there is one."""

    text_config: _Text | None = None
    vision_config: Vision | None = None
    quantization_config: _Quantization | None = None
    tie_word_embeddings: bool = False


def shape_of(config: object, name: str) -> ModelShape:
    """From a parsed ``config.json``. Raises :class:`UnknownShape` naming what is missing or not understood."""
    try:
        whole = msgspec.convert(config, _Config)
        read = whole.text_config or msgspec.convert(config, _Text)
    except msgspec.ValidationError as error:
        raise UnknownShape(f"{name}: config.json: {error}") from error
    full = _full_layers(read, name)
    linear = read.num_hidden_layers - full
    if linear and not (read.linear_num_value_heads and read.linear_value_head_dim and read.linear_key_head_dim):
        raise UnknownShape(f"{name}: config.json says nothing of the {linear} layers without full attention")
    return ModelShape(
        name=name,
        full_layers=full,
        linear_layers=linear,
        draft_layers=read.mtp_num_hidden_layers,
        hidden=read.hidden_size,
        intermediate=read.intermediate_size,
        vocab=read.vocab_size,
        heads=read.num_attention_heads,
        kv_heads=read.num_key_value_heads or read.num_attention_heads,
        head_dim=read.head_dim or max(1, read.hidden_size // read.num_attention_heads),
        gated_attention=linear > 0,
        tied_embeddings=read.tie_word_embeddings or whole.tie_word_embeddings,
        linear_key_heads=read.linear_num_key_heads,
        linear_value_heads=read.linear_num_value_heads,
        linear_key_dim=read.linear_key_head_dim,
        linear_value_dim=read.linear_value_head_dim,
        conv_kernel=read.linear_conv_kernel_dim,
        ssm_dtype=read.mamba_ssm_dtype or "float32",
        experts=read.num_experts,
        expert_intermediate=read.moe_intermediate_size,
        shared_intermediate=read.shared_expert_intermediate_size,
        vision=whole.vision_config,
        window_tokens=read.max_position_embeddings,
        weight_bits=_weight_bits(whole.quantization_config or read.quantization_config),
    )


def _full_layers(read: _Text, name: str) -> int:
    if read.layer_types is not None:
        unknown = sorted(set(read.layer_types) - {FULL, LINEAR})
        if unknown:
            raise UnknownShape(f"{name}: layers of type {', '.join(unknown)} are not known here")
        if len(read.layer_types) != read.num_hidden_layers:
            listed = len(read.layer_types)
            raise UnknownShape(f"{name}: config.json lists {listed} layers and counts {read.num_hidden_layers}")
        return read.layer_types.count(FULL)
    if read.linear_num_value_heads and read.full_attention_interval:
        return read.num_hidden_layers // read.full_attention_interval
    return read.num_hidden_layers


def _weight_bits(quantization: _Quantization | None) -> float | None:
    if quantization is None:
        return None
    if quantization.bits is not None:
        group = quantization.group_size
        return bits_with_scales(quantization.bits, group if group is not None and group > 0 else 128)
    return bits_named(quantization.quant_method + quantization.quant_algo)


def bits_with_scales(bits: int, group: int) -> float:
    """A weight's bits with its share of the group's 16-bit scale and zero point."""
    return bits + (16 + bits) / group


def bits_named(text: str) -> float | None:
    """Bits of a weight by the usual words in names of checkpoints and methods; ``None`` if there are none."""
    low = text.lower()
    if any(word in low for word in ("nvfp4", "mxfp4", "modelopt_fp4")):
        return 4.5
    if any(word in low for word in ("gptq", "awq", "autoround", "auto-round", "w4a16", "int4", "4bit", "4-bit")):
        return bits_with_scales(4, 128)
    return 8.0 if any(word in low for word in ("fp8", "int8", "w8a8", "8bit", "8-bit")) else None

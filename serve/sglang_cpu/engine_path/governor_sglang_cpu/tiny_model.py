"""Makes a tiny hybrid model with random weights: ``python -m governor_sglang_cpu.tiny_model FOLDER``.

Qwen3.5's architecture: three gated-delta-net layers and one of full attention, 9 million parameters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from .tokenizer import END_OF_TURN, IMAGE, PADDING, VIDEO, VISION_END, VISION_START, chat_template, make_tokenizer

WINDOW: Final = 131_072
_LINEAR: Final = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_ROPE: Final = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}
_VISION: Final = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
"""The architecture demands a vision part; it is never used."""

_WEIGHT_STD: Final = 0.08
"""Wide enough for logits that are not all alike, or answers would differ by rounding."""


def make_model(folder: Path) -> None:
    """The same weights each time with the same torch. ``folder`` may exist."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end, padding = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(PADDING)
    text: dict[str, Any] = {
        "vocab_size": -(-tokenizer.get_vocab_size() // 64) * 64,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "full_attention_interval": 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": _ROPE,
        "max_position_embeddings": WINDOW,
        "eos_token_id": end,
        "pad_token_id": padding,
        "bos_token_id": padding,
        **_LINEAR,
    }
    config = Qwen3_5Config(
        text_config=text,
        vision_config=_VISION,
        image_token_id=tokenizer.token_to_id(IMAGE),
        video_token_id=tokenizer.token_to_id(VIDEO),
        vision_start_token_id=tokenizer.token_to_id(VISION_START),
        vision_end_token_id=tokenizer.token_to_id(VISION_END),
        tie_word_embeddings=False,
    )
    model = Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16).eval()
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=_WEIGHT_STD)
    model.save_pretrained(folder, safe_serialization=True)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TURN,
            "pad_token": PADDING,
            "model_max_length": WINDOW,
            "clean_up_tokenization_spaces": False,
            "chat_template": chat_template(),
        },
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": end, "pad_token_id": padding, "do_sample": False})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))

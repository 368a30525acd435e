"""Model files for tests: a GGUF writer (metadata only) and the real merges and template of SmolLM2-135M-Instruct.

``data/smollm2-counts.json`` holds what the real engine counted for texts and conversations; merges and template are
those of the model (Apache-2.0, HuggingFaceTB).
"""

from __future__ import annotations

import gzip
import struct
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from governor.tokens.gguf import Value

_DATA = Path(__file__).parent / "data"


class Talk(msgspec.Struct, frozen=True):
    """A conversation and the ``prompt_tokens`` that the engine reported for it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    prompt_tokens: int

    @property
    def raw(self) -> list[bytes]:
        return [msgspec.json.encode(message) for message in self.messages]

    @property
    def raw_tools(self) -> bytes | None:
        return None if self.tools is None else msgspec.json.encode(self.tools)


class Recorded(msgspec.Struct, frozen=True):
    engine: str
    specials: list[str]
    pre: str
    chat_template: str
    texts: list[tuple[str, int]]
    talks: list[Talk]


@cache
def recorded() -> Recorded:
    return msgspec.json.decode((_DATA / "smollm2-counts.json").read_bytes(), type=Recorded)


@cache
def merges() -> list[str]:
    return gzip.decompress((_DATA / "smollm2-merges.txt.gz").read_bytes()).decode().split("\n")


def smollm2_metadata(**changes: Value) -> dict[str, Value]:
    """Metadata as the model's own GGUF has it, as far as its tokenizer goes."""
    specials = recorded().specials
    metadata: dict[str, Value] = {
        "general.name": "smollm2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": recorded().pre,
        "tokenizer.ggml.tokens": [*specials],
        "tokenizer.ggml.token_type": [3] * len(specials),
        "tokenizer.ggml.merges": [*merges()],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": recorded().chat_template,
    }
    return {**metadata, **{f"tokenizer.{key.replace('__', '.')}": value for key, value in changes.items()}}


def write_gguf(path: Path, metadata: dict[str, Value], *, version: int = 3) -> Path:
    parts = [b"GGUF", struct.pack("<IQQ", version, 0, len(metadata))]
    for key, value in metadata.items():
        kind, body = _encode(value)
        parts += [_text(key), struct.pack("<I", kind), body]
    path.write_bytes(b"".join(parts))
    return path


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encode(value: Value) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 5, struct.pack("<i", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _text(value)
        case list():
            encoded = [_encode(item) for item in value]
            kind = encoded[0][0] if encoded else 8
            return 9, struct.pack("<IQ", kind, len(encoded)) + b"".join(body for _, body in encoded)

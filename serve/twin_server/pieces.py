"""The twin's tokenizer: stateless, invertible, without a vocabulary.

A token is one to four bytes of whole UTF-8 characters. Its id is these bytes, little-endian, filled up with 0xFF,
which UTF-8 never has; so each id decodes alone. Special tokens begin with 0xFE, which UTF-8 never has either. As with
the real tokenizers, a marker such as ``<|im_end|>`` is its special token wherever it stands, in a user's text too.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

Ids: TypeAlias = "array[int]"
"""Of type "I": words of 32 bits, which is also what SGLang hashes."""

_FILL = b"\xff"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_SPECIAL_IDS = {
    marker.encode(): int.from_bytes(bytes((0xFE, number, 0xFE, 0xFE)), "little")
    for number, marker in enumerate(_SPECIALS)
}
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK, TOOL_CALL, END_TOOL_CALL, TOOL_RESPONSE, END_TOOL_RESPONSE = (
    _SPECIAL_IDS.values()
)
_MARKERS = {special: marker.decode() for marker, special in _SPECIAL_IDS.items()}
_FRAME = frozenset((END_OF_TEXT, IM_START, IM_END))

_MARKER = re.compile(b"(" + b"|".join(re.escape(marker) for marker in _SPECIAL_IDS) + b")")
# Nothing looks ahead, so what begins a text never depends on what follows the token after it.
_PIECE = re.compile(
    rb"""
      [!-~]{1,4}
    | \ [!-~]{1,3}
    | (?:[\xC2-\xDF][\x80-\xBF]){1,2}
    | \ ?[\xE0-\xEF][\x80-\xBF]{2}
    | [\xF0-\xF4][\x80-\xBF]{3}
    | \ {1,4}
    | [\x00-\x1F\x7F]{1,4}
    """,
    re.VERBOSE,
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(text: str) -> Ids:
    """The ids of a text. A lone surrogate, which no UTF-8 has, is read as the replacement character."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = _SURROGATE.sub(_REPLACEMENT, text).encode()
    ids = array("I")
    for number, part in enumerate(_MARKER.split(data)):
        if number % 2:
            ids.append(_SPECIAL_IDS[part])
        else:
            ids.frombytes(b"".join([piece.ljust(4, _FILL) for piece in _PIECE.findall(part)]))
    return ids


def decode(ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
    """The text of any ids; one that no text has reads as the replacement character. ``skip_special_tokens`` leaves out
    those that frame turns; markers of reasoning and calls are text, as in Qwen's tokenizers."""
    if skip_special_tokens:
        ids = [token for token in ids if token not in _FRAME]
    return "".join(map(_read, ids))


@lru_cache(maxsize=1 << 16)
def _read(token: int) -> str:
    if token in _MARKERS:
        return _MARKERS[token]
    try:
        text = token.to_bytes(4, "little").rstrip(_FILL).decode()
    except (OverflowError, UnicodeDecodeError):
        text = ""
    return text or _REPLACEMENT

"""A model's own byte-level BPE tokenizer as a ``tiktoken.Encoding``, from its ``tokenizer.json`` or GGUF file.

tiktoken merges whichever neighbours make the token of lowest rank; a merge list allows only the pairs it names. The
two agree on every input when each token's rank is the position of the merge that completes it when the token stands
alone, and tokens that no merge completes have no rank. (Take the first step at which they differ: tiktoken joins x and
y, the list does not. What happened inside x+y so far is what happens to x+y alone, so alone it also comes to x, y; and
there the list must join them by the merge whose position was taken as the rank.) :func:`merge_ranks` computes that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import tiktoken

from governor.tokens.gguf import Value
from governor.tokens.splits import (
    UnsupportedSplit,
    split_for,
    split_of_pre_tokenizer,
    starts_with_bos,
    takes_whole_words,
)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SLICE_CHARACTERS = 50_000


class UnsupportedTokenizer(Exception):
    """This tokenizer cannot be rebuilt exactly; the message says which part. Counts fall back to an estimate."""


class BpeTokenizer:
    """Counts tokens as the model's own tokenizer does. Pure; safe to share between threads."""

    def __init__(
        self,
        *,
        name: str,
        split: str,
        ranks: Mapping[bytes, int],
        specials: Sequence[str],
        bos: str | None = None,
        nfc: bool = False,
        proven: bool = True,
    ) -> None:
        first_id = max(ranks.values()) + 1
        self.bos = bos
        """Text of the token put before every prompt, if there is one."""
        self.proven = proven
        """False where some words are single tokens that no merge reaches, so that rare counts may be off by one."""
        self._nfc = nfc
        try:
            self.encoding = tiktoken.Encoding(
                name,
                pat_str=split,
                mergeable_ranks=dict(ranks),
                special_tokens={text: first_id + at for at, text in enumerate(specials)},
            )
        except ValueError as error:
            raise UnsupportedTokenizer(f"tiktoken refuses the expression: {error}") from error
        # tiktoken tries special tokens in arbitrary order, which matters where one is the beginning of another.
        longest_first = sorted(specials, key=lambda text: (-len(text), text))
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if specials else None
        self._specials = frozenset(specials)
        self._nested = any(b.startswith(a) for a, b in pairwise(sorted(specials)))

    def pieces(self, text: str) -> list[str]:
        """``text`` cut around its special tokens. The pieces' counts add up to the count of the text."""
        return [text] if self._cut is None else [piece for piece in self._cut.split(text) if piece]

    def count(self, text: str) -> int:
        """Tokens in ``text``; special tokens written out in it count as themselves, as engines treat a prompt."""
        if self._nfc and not unicodedata.is_normalized("NFC", text):
            text = unicodedata.normalize("NFC", text)
        if not self._nested:
            return self._encode(text)
        return sum(1 if piece in self._specials else self._encode(piece) for piece in self.pieces(text))

    def _encode(self, text: str) -> int:
        try:
            return len(self.encoding.encode(text, allowed_special="all", disallowed_special=()))
        except ValueError:
            # The expression engine gives up on white space longer than its stack (some 100,000 characters).
            parts = (text[at : at + _SLICE_CHARACTERS] for at in range(0, len(text), _SLICE_CHARACTERS))
            return sum(len(self.encoding.encode(part, allowed_special="all", disallowed_special=())) for part in parts)


def merge_ranks(merges: Sequence[tuple[bytes, bytes]]) -> dict[bytes, int]:
    """Ranks that make tiktoken's merging equal to this merge list (see the module's docstring).

    About two seconds for 150,000 merges.
    """
    ranks = {bytes((byte,)): byte for byte in range(256)}
    positions = {pair: at for at, pair in enumerate(merges)}
    if len(positions) != len(merges):
        raise UnsupportedTokenizer("the merge list repeats a pair")
    base = len(ranks)
    for token in dict.fromkeys(left + right for left, right in merges):
        last = _completing_merge(token, positions)
        if last is not None:
            ranks[token] = base + last
    return ranks


def _completing_merge(token: bytes, positions: Mapping[tuple[bytes, bytes], int]) -> int | None:
    """Position of the merge that completes ``token`` when it stands alone; ``None`` if none does."""
    parts = [token[at : at + 1] for at in range(len(token))]
    never = len(positions)
    found = [positions.get(pair, never) for pair in pairwise(parts)]
    last = never
    while found:
        last = min(found)
        if last == never:
            return None
        at = found.index(last)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del found[at]
        if at:
            found[at - 1] = positions.get((parts[at - 1], parts[at]), never)
        if at < len(found):
            found[at] = positions.get((parts[at], parts[at + 1]), never)
    return last


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (openai/gpt-2 ``encoder.py``, ``bytes_to_unicode``)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + at): byte for at, byte in enumerate(hidden)}}


_ALPHABET = _byte_alphabet()


def _to_bytes(shown: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in shown])
    except KeyError as error:
        raise UnsupportedTokenizer(f"a token outside the byte alphabet: {shown!r}") from error


def from_gguf(metadata: Mapping[str, Value]) -> BpeTokenizer:
    """The tokenizer of a GGUF file, from its ``tokenizer.ggml.*`` keys, as llama.cpp runs it.

    Raises :class:`UnsupportedTokenizer` for everything that is not byte-level BPE with a known ``pre``.
    """
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise UnsupportedTokenizer(f"tokenizer model {model!r}")
    split = split_for(pre) if isinstance(pre, str) else None
    if split is None or not isinstance(pre, str):
        raise UnsupportedTokenizer(f"pre-tokenizer {pre!r}")
    tokens = _texts(metadata.get("tokenizer.ggml.tokens"), "tokens")
    merges = [_pair(text) for text in _texts(metadata.get("tokenizer.ggml.merges"), "merges")]
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        kinds = [_NORMAL] * len(tokens)
    specials = [
        text for text, kind in zip(tokens, kinds, strict=True) if text and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    words = (text for text, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL)
    whole = [_to_bytes(text) for text in words if text] if takes_whole_words(pre) else []
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", starts_with_bos(pre))
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    bos = tokens[bos_id] if add_bos and isinstance(bos_id, int) and 0 <= bos_id < len(tokens) else None
    ranks, proven = _with_whole_words(merge_ranks(merges), whole)
    return BpeTokenizer(name=f"gguf-{pre}", split=split, ranks=ranks, specials=specials, bos=bos, proven=proven)


def from_tokenizer_json(raw: bytes, *, bos: str | None = None) -> BpeTokenizer:
    """The tokenizer of a Hugging Face ``tokenizer.json``, as the ``tokenizers`` library runs it.

    ``bos`` is the text of the token that the engine puts first, if it does. Raises :class:`UnsupportedTokenizer`
    for every part that is not rebuilt here: other models, other normalisers, other pre-tokenizers.
    """
    try:
        document = msgspec.json.decode(raw, type=_Document)
    except msgspec.MsgspecError as error:
        raise UnsupportedTokenizer(f"tokenizer.json: {error}") from error
    model = document.model
    if model.type not in ("BPE", None) or model.dropout or model.byte_fallback:
        raise UnsupportedTokenizer(f"tokenizer.json: model {model.type!r}")
    normalizer = document.normalizer.get("type") if document.normalizer else None
    if normalizer not in (None, "NFC"):
        raise UnsupportedTokenizer(f"tokenizer.json: normalizer {normalizer!r}")
    if any(token.lstrip or token.rstrip or token.single_word for token in document.added_tokens):
        raise UnsupportedTokenizer("tokenizer.json: an added token eats its surroundings")
    try:
        split = split_of_pre_tokenizer(document.pre_tokenizer)
    except UnsupportedSplit as error:
        raise UnsupportedTokenizer(f"tokenizer.json: {error}") from error
    specials = [token.content for token in document.added_tokens if token.content]
    merges = [_pair(merge) if isinstance(merge, str) else _pair_of(merge) for merge in model.merges]
    taken = set(specials)
    whole = [_to_bytes(text) for text in model.vocab if text not in taken] if model.ignore_merges else []
    ranks, proven = _with_whole_words(merge_ranks(merges), whole)
    return BpeTokenizer(
        name="tokenizer.json",
        split=split,
        ranks=ranks,
        specials=specials,
        bos=bos,
        nfc=normalizer == "NFC",
        proven=proven,
    )


class _AddedToken(msgspec.Struct):
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int]
    merges: list[str | list[str]]
    type: str | None = None
    dropout: float | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False


class _Document(msgspec.Struct):
    model: _Model
    pre_tokenizer: dict[str, object] | None = None
    normalizer: dict[str, object] | None = None
    added_tokens: list[_AddedToken] = []


def _with_whole_words(ranks: dict[bytes, int], whole: Iterable[bytes]) -> tuple[dict[bytes, int], bool]:
    """Ranks with the tokens that a whole word may be without any merge put last, and whether there were none."""
    following = max(ranks.values()) + 1
    unreached = [token for token in whole if token not in ranks]
    return {**ranks, **{token: following + at for at, token in enumerate(unreached)}}, not unreached


def _texts(value: Value | None, what: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise UnsupportedTokenizer(f"no {what}")
    return [text for text in value if isinstance(text, str)]


def _pair(merge: str) -> tuple[bytes, bytes]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise UnsupportedTokenizer(f"a merge that is not two tokens: {merge!r}")
    return _to_bytes(left), _to_bytes(right)


def _pair_of(merge: Sequence[str]) -> tuple[bytes, bytes]:
    if len(merge) != 2:
        raise UnsupportedTokenizer(f"a merge that is not two tokens: {merge!r}")
    return _to_bytes(merge[0]), _to_bytes(merge[1])

"""The twin's tokens: to ids and back, each alone, fast."""

from __future__ import annotations

import time
from array import array

import pytest

from serve.twin_server.pieces import END_THINK, IM_END, IM_START, decode, encode

_PROSE = "The scheduler waits for the cache, because a longer prompt needs more pages than it has.\n\n"
_CODE = "    def total(pages: int) -> int:\n        return pages * 64 if pages > 0 else 0\n"


def test_ids_are_the_bytes_of_words() -> None:
    ids = encode("Hello world")
    assert [decode((token,)) for token in ids] == ["Hell", "o", " wor", "ld"]
    assert list(ids)[:2] == [int.from_bytes(b"Hell", "little"), int.from_bytes(b"o\xff\xff\xff", "little")]


@pytest.mark.parametrize("text", ["naïve — 日本語 🙂🙂", "क़ é\u0301 \U0010ffff", "a\tb\r\n\x00\x7f", "ÿþ"])
def test_no_token_has_half_a_character(text: str) -> None:
    assert "".join(decode((token,)) for token in encode(text)) == text


def test_a_marker_is_one_token_wherever_it_stands() -> None:
    ids = encode("x<|im_start|>user\nhi<|im_end|>\n</think>")
    assert [token for token in ids if token in (IM_START, IM_END, END_THINK)] == [IM_START, IM_END, END_THINK]
    assert decode(ids) == "x<|im_start|>user\nhi<|im_end|>\n</think>"
    assert decode(ids, skip_special_tokens=True) == "xuser\nhi\n</think>"


def test_a_special_id_is_no_bytes_of_a_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        IM_START.to_bytes(4, "little").decode()


def test_a_lone_surrogate_reads_as_the_replacement_character() -> None:
    ids = encode("a\ud800b")
    assert decode(ids) == "a\ufffdb"
    assert encode(decode(ids)) == ids


@pytest.mark.parametrize("token", [0xFFFFFFFF, 0xC3, 0xFEFE77FE, 0xFF41FF42, -1, 1 << 32, 1 << 80])
def test_an_id_that_no_text_has_reads_as_the_replacement_character(token: int) -> None:
    assert decode((token,)) == "\ufffd"


def test_a_character_over_two_foreign_ids_is_not_put_together() -> None:
    first, second = b"abc\xc3", b"\xa9abc"
    ids = array("I", (int.from_bytes(first, "little"), int.from_bytes(second, "little")))
    assert decode(ids) == "\ufffd\ufffd"


def test_tokens_are_as_long_as_a_models() -> None:
    assert 3.0 < len(_PROSE) / len(encode(_PROSE)) < 4.0
    assert 2.5 < len(_CODE) / len(encode(_CODE)) < 4.0


def test_long_texts_are_quick() -> None:
    text = (_PROSE + _CODE) * (400_000 // len(_PROSE + _CODE))
    best = min(_timed(text) for _ in range(3))
    assert best < 0.2, f"{best * 1000:.0f} ms"  # 25 ms on an idle core; a quadratic way takes seconds


def _timed(text: str) -> float:
    began = time.thread_time()
    encode(text)
    return time.thread_time() - began

"""A model's own tokenizer, rebuilt: equal to the engine's counts, and never a crash on a strange file."""

from __future__ import annotations

import random
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path

import msgspec
import pytest

from governor.tokens.bpe import BpeTokenizer, UnsupportedTokenizer, from_gguf, from_tokenizer_json
from governor.tokens.load import load_folder, load_gguf
from governor.tokens.splits import QWEN2
from tests.model_files import merges, recorded, smollm2_metadata, write_gguf


@cache
def smollm2() -> BpeTokenizer:
    return from_gguf(smollm2_metadata())


def test_counts_equal_the_engines_on_every_recorded_text() -> None:
    wrong = [(text, counted) for text, counted in recorded().texts if smollm2().count(text) != counted]

    assert wrong == []
    assert smollm2().proven


def test_pieces_add_up_to_the_whole() -> None:
    for text, counted in recorded().texts:
        pieces = smollm2().pieces(text)
        assert "".join(pieces) == text
        assert sum(map(smollm2().count, pieces)) == counted


def test_white_space_longer_than_the_expression_engine_takes_is_still_counted() -> None:
    assert 0 < smollm2().count(" " * 1_000_000 + "x") < 1_000_000


def test_a_special_token_that_begins_another_does_not_hide_it() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    tokenizer = BpeTokenizer(name="t", split=QWEN2, ranks=ranks, specials=["<s", "<s>", "<s>>"])

    assert tokenizer.count("<s>>") == 1
    assert tokenizer.count("<s>a") == 2
    assert tokenizer.count("<s ") == 2


def tokenizer_json(**changes: object) -> bytes:
    document = {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        },
        "added_tokens": [{"id": at, "content": text} for at, text in enumerate(recorded().specials)],
        "model": {"type": "BPE", "vocab": {}, "merges": merges()},
    }
    return msgspec.json.encode({**document, **changes})


def test_tokenizer_json_counts_as_the_gguf_does() -> None:
    pairs = [merge.split(" ") for merge in merges()]
    as_text = from_tokenizer_json(tokenizer_json())
    as_pairs = from_tokenizer_json(tokenizer_json(model={"type": "BPE", "vocab": {}, "merges": pairs}))

    for text, counted in recorded().texts:
        assert as_text.count(text) == as_pairs.count(text) == counted


def test_nfc_is_applied_where_the_model_asks_for_it() -> None:
    composed, decomposed = "é", unicodedata.normalize("NFD", "é")
    plain, normalising = (from_tokenizer_json(tokenizer_json(normalizer=n)) for n in (None, {"type": "NFC"}))

    assert plain.count(decomposed) != plain.count(composed)
    assert normalising.count(decomposed) == normalising.count(composed) == plain.count(composed)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"type": "Unigram", "vocab": {}, "merges": []}}, "Unigram"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "byte_fallback": True}}, "model"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "ByteLevel"),
        ({"pre_tokenizer": None}, "ByteLevel"),
        ({"added_tokens": [{"content": "<m>", "lstrip": True}]}, "added token"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": ["ab"]}}, "merge"),
        ({"model": []}, "tokenizer.json"),
    ],
)
def test_a_tokenizer_json_with_other_parts_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=named):
        from_tokenizer_json(tokenizer_json(**changes))


def test_a_gguf_gives_an_exact_counter(tmp_path: Path) -> None:
    loaded = load_gguf(write_gguf(tmp_path / "m.gguf", smollm2_metadata()))

    assert loaded.exact
    assert "message by message" in loaded.reason


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ggml__model": "llama"}, "llama"),
        ({"ggml__pre": "some-new-one"}, "some-new-one"),
        ({"ggml__pre": 7}, "7"),
        ({"ggml__merges": []}, "merges"),
        ({"ggml__merges": ["a b", "a b"]}, "repeats"),
        ({"ggml__tokens": 3}, "tokens"),
        ({"chat_template": "{% if %}"}, "template"),
        ({"chat_template": ""}, "template"),
    ],
)
def test_an_unknown_gguf_gives_an_estimate_and_says_why(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    small = {"ggml__merges": merges()[:20], **changes}
    loaded = load_gguf(write_gguf(tmp_path / "m.gguf", smollm2_metadata(**small)))  # type: ignore[arg-type]

    assert not loaded.exact
    assert named in loaded.reason


def small_metadata() -> dict[str, object]:
    return {**smollm2_metadata(), "tokenizer.ggml.merges": merges()[:20]}


def test_no_damage_to_a_gguf_raises(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", small_metadata())  # type: ignore[arg-type]
    whole = path.read_bytes()
    chance = random.Random(3)  # noqa: S311
    for _ in range(150):
        damaged = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.5 else whole)
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 8, 9, 127, 255))
        path.write_bytes(damaged)
        load_gguf(path)


def test_files_that_are_no_model_give_an_estimate(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_text("hello")
    write_gguf(tmp_path / "old.gguf", {"a": 1}, version=1)

    for name in ("empty.gguf", "text.gguf", "old.gguf", "missing.gguf", "."):
        assert not load_gguf(tmp_path / name).exact
    assert not load_folder(tmp_path).exact


def test_a_model_folder_gives_an_exact_counter(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    config = {"chat_template": recorded().chat_template, "bos_token": {"content": "<|im_start|>"}}
    (tmp_path / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))

    assert load_folder(tmp_path).exact


def test_nothing_that_could_download_is_even_loaded() -> None:
    program = "import sys, governor.tokens.load; print([m for m in ('tiktoken.load', 'requests') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"

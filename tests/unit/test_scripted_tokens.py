"""Counts that a test can recompute, and the prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve.scripted.tokens import (
    Counting,
    PrefixCache,
    common_prefix_chars,
    count_tokens,
    split_tokens,
    token_ids,
)


def test_a_word_with_its_space_is_one_token() -> None:
    assert count_tokens("word " * 1000) == 1001
    assert count_tokens("") == 0
    assert split_tokens("internationally, yes") == ["internat", "ionally", ",", " yes"]


def test_counting_by_characters() -> None:
    assert [count_tokens("x" * n, Counting.CHARS) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


@given(st.text())
def test_tokens_join_to_their_text(text: str) -> None:
    assert "".join(split_tokens(text)) == text
    assert len(token_ids(text)) == count_tokens(text)


@given(st.text(), st.text(), st.text())
def test_common_prefix_is_the_longest(shared: str, left: str, right: str) -> None:
    a, b = shared + left, shared + right
    length = common_prefix_chars(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length == min(len(a), len(b))


@given(st.text(alphabet="ab ,\n", max_size=40), st.text(alphabet="ab ,\n", max_size=40), st.text(max_size=5))
def test_cached_tokens_are_really_common(shared: str, left: str, right: str) -> None:
    prompt, seen = shared + left, shared + right
    cache = PrefixCache(4, Counting.WORDS)
    cache.remember(seen)
    cached = cache.cached_tokens(prompt, count_tokens(prompt))
    assert split_tokens(prompt)[: max(0, cached)] == split_tokens(seen)[: max(0, cached)]


def test_a_continuation_is_cached_and_a_repeat_leaves_one_token_to_compute() -> None:
    cache = PrefixCache(4, Counting.WORDS)
    first = "word " * 100
    assert cache.cached_tokens(first, count_tokens(first)) == 0
    cache.remember(first)
    assert cache.cached_tokens(first, count_tokens(first)) == count_tokens(first) - 1
    longer = first + "more " * 10
    assert cache.cached_tokens(longer, count_tokens(longer)) == 100


def test_the_oldest_prompt_is_forgotten() -> None:
    cache = PrefixCache(2, Counting.WORDS)
    for text in ("a " * 50, "b " * 50, "c " * 50):
        cache.remember(text)
    assert cache.cached_tokens("a " * 60, 61) == 0
    assert cache.cached_tokens("b " * 60, 61) == 50


def test_an_answer_replaces_the_prompt_it_extends() -> None:
    cache = PrefixCache(2, Counting.WORDS)
    cache.remember("x " * 20)
    cache.remember("a ")
    cache.remember("a b", replaces="a ")
    assert cache.cached_tokens("x " * 30, 31) == 20

"""The claim of ``governor.tokens.bpe``: tiktoken with our ranks merges as the merge list does, on every input."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from governor.tokens.bpe import BpeTokenizer, merge_ranks

Merges = list[tuple[bytes, bytes]]


def merged_by_list(word: bytes, merges: Merges) -> list[bytes]:
    """Byte-pair encoding as defined: join the leftmost pair of lowest position until none is listed."""
    positions = {pair: at for at, pair in enumerate(merges)}
    parts = [word[at : at + 1] for at in range(len(word))]
    while True:
        listed = [(positions[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in positions]
        if not listed:
            return parts
        _, at = min(listed)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@st.composite
def merge_lists(draw: st.DrawFn) -> Merges:
    """Lists in any order, with several merges for one token, dead merges and tokens out of order of length."""
    tokens = [b"a", b"b", b"c"]
    merges: Merges = []
    for _ in range(draw(st.integers(1, 14))):
        pair = (draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens)))
        if pair not in merges and len(pair[0] + pair[1]) <= 8:
            merges.append(pair)
            if pair[0] + pair[1] not in tokens:
                tokens.append(pair[0] + pair[1])
    return draw(st.permutations(merges))


@settings(max_examples=400, deadline=None)
@given(merges=merge_lists(), word=st.text("abc", min_size=1, max_size=14))
@example(merges=[(b"ab", b"c"), (b"c", b"a"), (b"b", b"c"), (b"a", b"b"), (b"a", b"bc")], word="abca")
@example(merges=[(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")], word="abc")
@example(merges=[(b"b", b"c"), (b"ab", b"c"), (b"bc", b"a"), (b"a", b"bc"), (b"a", b"b")], word="abca")
def test_tiktoken_merges_as_the_list_does(merges: Merges, word: str) -> None:
    tokenizer = BpeTokenizer(name="t", split=r"[\s\S]+", ranks=merge_ranks(merges), specials=[])

    encoded = tokenizer.encoding.encode(word)

    assert [tokenizer.encoding.decode_single_token_bytes(token) for token in encoded] == merged_by_list(
        word.encode(), merges
    )

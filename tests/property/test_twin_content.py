"""Over arbitrary texts, conversations and cuts: tokens invert, runs are the tokens, answers go on."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.twin.tiers_key import Key
from serve.twin_server.answers import AnswerSettings, Lengths, Limits, Offer, Wish, WishedCall, plan
from serve.twin_server.calls import ToolSpec
from serve.twin_server.content import Content
from serve.twin_server.parse import AnswerParser, gather, parse
from serve.twin_server.pieces import Ids, decode, encode
from serve.twin_server.template import chat_ids

texts = st.text(st.characters(codec="utf-8"), max_size=80) | st.sampled_from(
    ["<|im_end|>", "</think>", "<tool_call>\n<function=f>", "\n\n\n", "  x\t\r\n", "क़", "🙂" * 3, "a b" * 9]
)
joined_texts = st.lists(texts, max_size=4).map("".join)
words = st.integers(0, 2**32 - 1)


@given(joined_texts)
def test_a_text_comes_back(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    assert all(encode(decode((token,))) == array("I", (token,)) for token in ids)


@given(st.text(max_size=60))
def test_any_text_can_be_sent(text: str) -> None:
    decode(encode(text)).encode()


@given(joined_texts, st.data())
def test_a_beginning_of_tokens_is_the_tokens_of_a_beginning(text: str, data: st.DataObject) -> None:
    ids = encode(text)
    part = ids[: data.draw(st.integers(0, len(ids)))]
    assert encode(decode(part)) == part


@given(st.lists(words, max_size=30), st.data())
def test_any_ids_read_alike_in_any_portions(ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    assert decode(ids) == decode(ids[:cut]) + decode(ids[cut:])


messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": texts})


@given(st.lists(messages, min_size=1, max_size=6), messages)
def test_a_message_that_asks_nothing_only_appends(history: list[dict[str, str]], further: dict[str, str]) -> None:
    history = [{"role": "user", "content": "q"}, *history]
    before = chat_ids(history, add_generation_prompt=False)
    if further["role"] == "user":
        further = {**further, "role": "tool"}
    assert chat_ids([*history, further], add_generation_prompt=False)[: len(before)] == before


@st.composite
def contexts(draw: st.DrawFn) -> list[Ids]:
    """Sequences that share beginnings, over few tokens, so that pages meet by chance too."""
    said: list[Ids] = [array("I")]
    for _ in range(draw(st.integers(1, 12))):
        base = draw(st.sampled_from(said))
        kept = base[: draw(st.integers(0, len(base)))]
        said.append(kept + array("I", draw(st.lists(st.integers(0, 2), max_size=14))))
    return said


def pages(ids: Ids, page: int) -> list[Ids]:
    return [ids[at : at + page] for at in range(0, len(ids) - page + 1, page)]


def common_pages(a: Ids, b: Ids, page: int) -> int:
    same = 0
    for left, right in zip(pages(a, page), pages(b, page), strict=False):
        if left != right:
            break
        same += 1
    return same


@settings(deadline=None)
@given(contexts(), st.sampled_from([1, 2, 4]))
def test_keys_share_what_the_tokens_share(said: list[Ids], page: int) -> None:
    content = Content(page)
    keys = [content.context(ids).key for ids in said]
    content.check_integrity()
    again = [content.context(ids).key for ids in said]
    for ids, key, same in zip(said, keys, again, strict=True):
        whole = len(ids) - len(ids) % page
        assert len(key) == len(ids)
        assert key.cut(0, whole) == same.cut(0, whole)
        assert b"".join(content.tokens(run).tobytes() for run in key.cut(0, whole).runs) == ids[:whole].tobytes()
        assert names(content, key.cut(0, whole)) == expected_names(ids, page)
    for a, left in zip(said, keys, strict=True):
        for b, right in zip(said, keys, strict=True):
            shared = left.common(right, 0)
            assert shared // page == common_pages(a, b, page)


def names(content: Content, key: Key) -> list[str]:
    """Events' hashes must tell the same pages."""
    found: list[str] = []
    parent: int | None = None
    for run in key.runs:
        stored = content.storage_names(run)
        blocks = content.blocks(run)
        assert blocks.parent_block_hash == parent
        assert blocks.block_hashes == [int.from_bytes(bytes.fromhex(name)[:8], "big", signed=True) for name in stored]
        parent = blocks.block_hashes[-1]
        found += stored
    return found


def expected_names(ids: Ids, page: int) -> list[str]:
    digest, found = b"", []
    for each in pages(ids, page):
        digest = hashlib.sha256(digest + each.tobytes()).digest()
        found.append(digest.hex())
    return found


@settings(deadline=None)
@given(contexts(), st.sampled_from([1, 4]), st.data())
def test_growing_is_as_good_as_coming_whole(said: list[Ids], page: int, data: st.DataObject) -> None:
    whole, growing = Content(page), Content(page)
    for ids in said:
        key = whole.context(ids).key
        cut = data.draw(st.integers(0, len(ids)))
        context = growing.context(ids[:cut])
        context.append(ids[cut:])
        assert len(context.key) == len(key)
        growing.check_integrity()
    for ids in said:
        settled = len(ids) - len(ids) % page
        assert names(growing, growing.context(ids).key.cut(0, settled)) == expected_names(ids, page)


@settings(deadline=None)
@given(contexts(), st.sampled_from([1, 4]), st.data())
def test_forgetting_leaves_the_rest(said: list[Ids], page: int, data: st.DataObject) -> None:
    content = Content(page)
    keys = [content.context(ids).key for ids in said]
    kept = data.draw(st.lists(st.sampled_from(range(len(said))), unique=True))
    content.keep_only({run[0] for index in kept for run in keys[index].runs})
    content.check_integrity()
    for index in kept:
        ids, key = said[index], keys[index]
        settled = len(ids) - len(ids) % page
        assert content.context(ids).key.cut(0, settled) == key.cut(0, settled)


_OFFER = Offer((ToolSpec("f", {"properties": {"a": {"type": "string"}, "b": {"type": "object"}}, "required": ["a"]}),))
_SETTINGS = AnswerSettings(content=Lengths(median=30), reasoning=Lengths(median=20))
clean_texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=40)
wishes = st.builds(
    Wish,
    text=st.none() | clean_texts,
    reasoning=st.none() | clean_texts,
    call_share=st.sampled_from([0.0, 1.0]),
    calls=st.none()
    | st.lists(
        st.builds(WishedCall, name=st.just("f"), arguments=st.none() | st.just({"a": "x\n\ny"})), max_size=2
    ).map(tuple),
)


@settings(deadline=None, max_examples=60)
@given(wishes, st.booleans(), st.integers(0, 200), st.data())
def test_an_answer_cut_anywhere_goes_on(wish: Wish, thinks: bool, min_tokens: int, data: st.DataObject) -> None:
    prompt = chat_ids([{"role": "user", "content": "q"}], enable_thinking=thinks)

    def written(ids: Ids, done: int) -> Ids:
        limits = Limits(max_tokens=5000, min_tokens=max(0, min_tokens - done))
        return plan(ids, settings=_SETTINGS, limits=limits, wish=wish, offer=_OFFER).ids

    whole = written(prompt, 0)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert whole[:cut] + written(prompt + whole[:cut], cut) == whole


@settings(deadline=None, max_examples=60)
@given(wishes, st.booleans(), st.data())
def test_an_output_reads_alike_in_any_portions(wish: Wish, thinks: bool, data: st.DataObject) -> None:
    prompt = chat_ids([{"role": "user", "content": "q"}], enable_thinking=thinks)
    answer = plan(prompt, settings=_SETTINGS, limits=Limits(max_tokens=5000), wish=wish, offer=_OFFER)
    parser = AnswerParser(answer, _OFFER)
    deltas: list[Any] = []
    rest = answer.ids
    while rest:
        portion = data.draw(st.integers(1, 40))
        deltas += parser.feed(rest[:portion])
        rest = rest[portion:]
    parsed = gather(deltas)
    assert parsed == parse(answer, _OFFER)
    for call in parsed.calls:
        assert isinstance(msgspec.json.decode(call.arguments)["a"], str)

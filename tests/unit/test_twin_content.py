"""Ids to runs and back, and pages by SGLang's own names."""

from __future__ import annotations

import time
from array import array
from random import Random

import pytest

from serve.twin.tiers_key import Key
from serve.twin_server.content import Content
from serve.twin_server.pieces import Ids

_PAGE = 4
_IDS = array("I", [*range(1000, 1010), 0x80989FF0, 4294967295])
# Of _IDS by pages of 4: get_hash_str and compute_node_event_hash_values of SGLang 0.5.23, with its C++.
_VECTORS = {
    (None, None): (
        "1d533aec2cd826f8f398589c20e169718d95dc7b123918889d58e0d09b7960c7",
        "2be5b730d7617a19b1b69dac4c2006c6e7bfd529c18f7580d47ab872f44b17bb",
        "9a5a04f8628d901fd9c876dd7f0b74742e28304bddbdd0e7d4d08a86519fa793",
        (2113097436205950712, 3163135733697444377, -7324536379112845281),
    ),
    ("tenant", None): (
        "26e102a17009a3f528908a3dcaeb974f41ee82a9d9a9eb7b52a724a60d6ae645",
        "1eea40b77b2ca11f4a229362031518fe716f40f1e992f21f55b4bdcfbbd2be3a",
        "eb98354769f2b4148932e23cf2653cec0c8bd3f392819e56fbfea487a756d7dc",
        (2113097436205950712, 3163135733697444377, -7324536379112845281),
    ),
    (None, "salt"): (
        "bd4305941ba8a4ac6cd7cd0a777d5566c128572dec884ac617894f5ca38fb285",
        "8627b1603b322b350f916c0925a1dd4982117d8aea5f6d6abe48a955f296f566",
        "0cb2d83328279e81a9d4d837de885a92dc3456bb5b1c2cffa3828bdc08136ac2",
        (-3126208124595131271, -8396835207584331971, -1881440359014113082),
    ),
    ("tenant", "sält"): (
        "926444cb2bc1400c7027395a9d97c23f1de1e8b4acf80be95f7bd4d099a49f95",
        "efe510e624ae2af9912a91ebe9b1f4bca7c09b05b968242a4852ea6a5dc6c0ef",
        "2c92937a4e9aeb310be8d9c332f4bfcbce98c8d4a3628eb1ea774d4448c5bef2",
        (4609679703175407049, 4173736453165731885, -3648886445335485173),
    ),
}


def ids(*values: int) -> Ids:
    return array("I", values)


@pytest.mark.parametrize("namespace", list(_VECTORS))
def test_pages_have_sglangs_names(namespace: tuple[str | None, str | None]) -> None:
    content = Content(_PAGE)
    *names, hashes = _VECTORS[namespace]
    extra_key, salt = namespace
    key = content.context(_IDS, extra_key=extra_key, cache_salt=salt).key
    (run,) = key.runs
    assert content.storage_names(run) == names
    blocks = content.blocks(run)
    assert tuple(blocks.block_hashes) == hashes
    assert blocks.parent_block_hash is None
    assert blocks.token_ids == _IDS.tolist()
    assert blocks.cache_salt == salt


def test_names_go_on_over_a_branch() -> None:
    content = Content(_PAGE)
    content.context(ids(*range(1000, 1004), 9, 9, 9, 9))
    first, second = content.context(_IDS).key.runs
    *_, hashes = _VECTORS[None, None]
    assert tuple(content.blocks(first).block_hashes) == hashes[:1]
    blocks = content.blocks(second)
    assert (tuple(blocks.block_hashes), blocks.parent_block_hash) == (hashes[1:], hashes[0])
    source, start, stop = second
    assert content.blocks((source, start + _PAGE, stop)).parent_block_hash == hashes[1]


def test_names_of_what_is_said_later() -> None:
    content = Content(_PAGE)
    context = content.context(_IDS[:5])
    assert content.blocks(context.key.runs[0]).token_ids == _IDS[:4].tolist()
    context.append(_IDS[5:])
    *_, hashes = _VECTORS[None, None]
    assert tuple(content.blocks(context.key.runs[0]).block_hashes) == hashes


def test_the_same_tokens_are_the_same_runs() -> None:
    content = Content(_PAGE)
    first = content.context(_IDS).key
    assert content.context(_IDS).key == first
    assert content.context(_IDS[:8]).key == first.cut(0, 8)
    assert first.runs == ((first.runs[0][0], 0, 12),)
    assert content.kept_tokens == 12


def test_a_branch_goes_on_from_a_pages_border() -> None:
    content = Content(_PAGE)
    first = content.context(_IDS).key
    other = ids(*_IDS[:6], 1, 2, 3, 4, 5, 6)
    second = content.context(other).key
    assert first.common(second, 0) == _PAGE
    assert content.context(other).key == second
    assert content.context(_IDS).key == first
    assert b"".join(content.tokens(run).tobytes() for run in second.runs) == other.tobytes()
    content.check_integrity()


def test_a_page_that_becomes_whole_is_named_as_others_name_it() -> None:
    content = Content(_PAGE)
    first = content.context(_IDS).key
    growing = content.context(_IDS[:6])
    growing.append(_IDS[6:7])
    growing.append(_IDS[7:])
    assert growing.key == first
    other = content.context(_IDS[:6])
    other.append(ids(1, 2))
    assert other.key == content.context(ids(*_IDS[:6], 1, 2)).key
    assert other.key.common(first, 0) == _PAGE


def test_namespaces_share_nothing() -> None:
    content = Content(_PAGE)
    keys = [content.context(_IDS, extra_key=extra, cache_salt=salt).key for extra, salt in _VECTORS]
    assert all(a is b or a.common(b, 0) == 0 for a in keys for b in keys)


def test_what_nobody_holds_is_forgotten() -> None:
    content = Content(_PAGE)
    first = content.context(_IDS).key
    second = content.context(ids(*_IDS[:4], 1, 2, 3, 4)).key
    third = content.context(ids(*_IDS[:4], 1, 2, 3, 4, 5, 6, 7, 8)).key
    assert content.kept_tokens == 12 + 8
    content.keep_only({third.runs[-1][0]})
    content.check_integrity()
    assert content.kept_tokens == 12 + 8, "what a kept source stands on is kept"
    assert content.context(ids(*_IDS[:4], 1, 2, 3, 4)).key == second
    content.keep_only({first.runs[0][0]})
    content.check_integrity()
    assert content.kept_tokens == 12
    again = content.context(ids(*_IDS[:4], 1, 2, 3, 4)).key
    assert again.runs[0] == second.runs[0]
    assert again.runs[1][0] != second.runs[1][0], "a forgotten source's number is not used again"
    content.keep_only(())
    assert content.kept_tokens == 0
    assert content.context(_IDS).key.runs[0][0] != first.runs[0][0]


def test_nothing_is_a_key_too() -> None:
    content = Content(_PAGE)
    assert content.context(array("I")).key == Key()


@pytest.mark.parametrize("page", [1, 64])
def test_a_long_conversation_is_few_runs_and_quick(page: int) -> None:
    random = Random(0)  # noqa: S311 - tokens, not a secret
    content = Content(page)
    said = array("I", (random.getrandbits(31) for _ in range(200_000)))
    began = time.thread_time()
    for turn in range(1, 21):
        key = content.context(said[: turn * 10_000]).key
        assert len(key.runs) <= 2
    assert len(key) == 200_000
    assert time.thread_time() - began < 1, "a turn costs what it adds, and one comparison of the rest"

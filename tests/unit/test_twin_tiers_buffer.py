"""``--hicache-host-memory-mode buffer_only``: host memory is staging, what comes back comes from L3."""

from __future__ import annotations

from typing import Any

import pytest

from serve.twin.tiers import Tiers
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import HostMode, OutOfTokens, Tier, TierSettings, WritePolicy
from serve.twin.tiers_prefetch import Prefetch
from serve.twin.tiers_request import Request
from serve.twin.tiers_storage import Storage

STAGING: dict[str, Any] = {
    "host_tokens": 2048,
    "host_slots": 20,
    "host_mode": HostMode.BUFFER_ONLY,
    "storage_tokens": None,
}
SLOTS = pytest.mark.parametrize("slots", [0, 32], ids=["dense", "hybrid"])


def words(source: int, tokens: int) -> Key:
    return Key([(source, 0, tokens)])


def tiers_of(storage: Storage | None = None, **changed: Any) -> Tiers:
    pools: dict[str, Any] = {"device_tokens": 4096, "track_interval_tokens": 64, "prefetch_tokens": 64}
    return Tiers(TierSettings(**(pools | STAGING | changed)), storage)


def prefilled(tiers: Tiers, key: Key, staged: Prefetch | None = None) -> Request:
    request = tiers.admit(key, staged=staged)
    tiers.extend(request, request.left_tokens)
    tiers.checkpoint(request)
    tiers.check_integrity()
    return request


def served(tiers: Tiers, key: Key) -> None:
    tiers.finish(prefilled(tiers, key))
    tiers.settle()
    tiers.check_integrity()


def read(tiers: Tiers, key: Key) -> Prefetch:
    prefetch = tiers.prefetch(key)
    assert prefetch is not None
    tiers.prefetches.finish(prefetch, tiers.prefetches.answer(prefetch))
    tiers.check_integrity()
    return prefetch


def free_staging(tiers: Tiers) -> tuple[int, int]:
    return tiers.tree.free_host_tokens, tiers.tree.free_host_slots


@SLOTS
def test_what_fell_from_l1_is_not_in_l2_but_comes_from_l3(slots: int) -> None:
    tiers = tiers_of(device_slots=slots)
    served(tiers, words(1, 1025))
    tiers.evict(tokens=4096)
    assert tiers.match(words(1, 1024)).tier is Tier.MISS
    prefetch = read(tiers, words(1, 1025))
    assert prefetch.is_staged
    assert free_staging(tiers) == (1024, 20 - bool(slots))
    assert tiers.match(words(1, 1024)).usable_tokens == 0
    request = prefilled(tiers, words(1, 1025), prefetch)
    assert (request.device_hit_tokens, request.host_hit_tokens) == (0, 1024)
    assert free_staging(tiers) == (1024, 20 - bool(slots))
    tiers.settle()
    assert free_staging(tiers) == (2048, 20)
    assert tiers.match(words(1, 1024)).device_tokens == 1024
    tiers.check_integrity()


@SLOTS
def test_a_write_holds_l1_until_it_is_staged_and_staging_until_it_is_stored(slots: int) -> None:
    tiers = tiers_of(device_slots=slots)
    tiers.finish(prefilled(tiers, words(1, 1025)))
    assert free_staging(tiers) == (2048, 20)
    assert tiers.host.launch()
    assert free_staging(tiers) == (1024, 20 - bool(slots))
    assert tiers.available_tokens == 4096 - 1024
    for number in list(tiers.host.writes):
        tiers.host.finish_write(number)
    assert (tiers.available_tokens, free_staging(tiers)) == (4096, (1024, 20 - bool(slots)))
    for number in list(tiers.host.storage_writes):
        tiers.host.finish_storage_write(number)
    assert free_staging(tiers) == (2048, 20)


def test_what_l3_is_believed_to_have_is_not_written_again() -> None:
    tiers = tiers_of()
    served(tiers, words(1, 1025))
    tiers.evict(tokens=4096)
    tiers.finish(prefilled(tiers, words(1, 1025)))
    assert not tiers.host.launch()
    tiers.finish(prefilled(tiers, words(1, 1024) + words(2, 129)))
    assert tiers.host.launch()
    assert [write.tokens for write in tiers.host.writes.values()] == [128]


def test_a_restarted_engine_believes_nothing_until_l3_has_shown_it() -> None:
    first = tiers_of()
    served(first, words(1, 1025))
    again = tiers_of(first.storage)
    again.finish(prefilled(again, words(1, 1025)))
    assert again.host.launch()
    again = tiers_of(first.storage)
    prefilled(again, words(1, 1025), read(again, words(1, 1025)))
    assert not again.host.launch()


def test_what_l3_has_lost_is_written_again_once_it_was_asked_for() -> None:
    tiers = tiers_of(storage_tokens=1024)
    served(tiers, words(1, 1025))
    served(tiers, words(2, 1025))  # the first falls out of L3
    tiers.evict(tokens=4096)
    served(tiers, words(1, 1025))
    tiers.evict(tokens=4096)
    prefetch = tiers.prefetch(words(1, 1025))
    assert prefetch is not None
    assert tiers.prefetches.answer(prefetch) == 0
    served(tiers, words(1, 1025))
    assert tiers.storage.find(words(1, 1024), tiers.tree.root, 0, needs_state=False) == 1024


def test_a_queued_write_follows_its_split_node_and_falls_with_an_evicted_one() -> None:
    tiers = tiers_of()
    tiers.finish(prefilled(tiers, words(1, 1025)))
    tiers.match(words(1, 512))
    tiers.finish(prefilled(tiers, words(2, 257)))
    tiers.match(words(1, 1024))
    tiers.evict(tokens=1)  # the second context, which was used before
    tiers.settle()
    root = tiers.tree.root
    assert tiers.storage.find(words(1, 1024), root, 0, needs_state=False) == 1024
    assert tiers.storage.find(words(2, 256), root, 0, needs_state=False) == 0


def test_what_is_larger_than_staging_is_not_written_and_nothing_behind_it() -> None:
    tiers = tiers_of(host_tokens=512)
    served(tiers, words(1, 1025))
    served(tiers, words(1, 1024) + words(2, 129))
    assert tiers.storage.find(words(1, 1024), tiers.tree.root, 0, needs_state=False) == 0
    assert not tiers.host.storage_writes


def test_reads_wait_for_staging_in_their_order() -> None:
    tiers = tiers_of(device_tokens=8192)
    for source in (1, 2, 3):
        served(tiers, words(source, 1025))
    tiers.evict(tokens=8192)
    first, second, third = (tiers.prefetch(words(source, 1025)) for source in (1, 2, 3))
    assert first is not None
    assert second is not None
    assert third is not None
    prefetches = tiers.prefetches
    assert [prefetches.answer(each) for each in (first, second, third)] == [1024, 1024, 0]
    assert third.is_parked
    prefetches.finish(first, 1024)
    assert prefetches.answer(third) == 0
    prefetches.release(first)
    assert prefetches.answer(third) == 1024
    tiers.check_integrity()
    for each in (second, third):
        prefetches.release(each)
    assert free_staging(tiers) == (2048, 20)
    tiers.check_integrity()


@pytest.mark.parametrize(("window", "kept"), [(0, 1024), (4096, 0)])
def test_what_a_read_continues_is_held_if_the_window_leaves_room_for_it(window: int, kept: int) -> None:
    tiers = tiers_of(window_tokens=window)
    served(tiers, words(1, 1024) + words(2, 513))
    tiers.match(words(1, 1024))
    tiers.evict(tokens=1)  # the end of the context
    key = words(1, 1024) + words(2, 513)
    prefetch = read(tiers, key)
    tiers.evict(tokens=4096)
    assert tiers.match(words(1, 1024)).device_tokens == kept
    assert tiers.prefetches.is_lost(prefetch) is not bool(kept)
    request = tiers.admit(key, staged=prefetch)
    assert request.computed_tokens == (1536 if kept else 0)
    tiers.settle()
    assert free_staging(tiers) == (2048, 20)
    tiers.check_integrity()


def test_what_was_read_stays_staged_where_l1_has_no_room() -> None:
    tiers = tiers_of(device_tokens=2048)
    served(tiers, words(1, 1025))
    tiers.evict(tokens=2048)
    prefetch = read(tiers, words(1, 1025))
    other = prefilled(tiers, words(2, 1500))
    with pytest.raises(OutOfTokens):
        tiers.admit(words(1, 1025), staged=prefetch)
    tiers.check_integrity()
    assert prefetch.is_staged
    tiers.finish(other)
    tiers.settle()
    assert prefilled(tiers, words(1, 1025), prefetch).host_hit_tokens == 1024


def test_what_was_computed_meanwhile_needs_no_read() -> None:
    tiers = tiers_of()
    served(tiers, words(1, 1025))
    tiers.evict(tokens=4096)
    prefetch = read(tiers, words(1, 1025))
    served(tiers, words(1, 1025))
    request = prefilled(tiers, words(1, 1025), prefetch)
    assert (request.device_hit_tokens, request.host_hit_tokens) == (1024, 0)
    assert free_staging(tiers) == (2048, 20)


@pytest.mark.parametrize(
    ("policy", "hits"), [(WritePolicy.WRITE_THROUGH, 1), (WritePolicy.WRITE_BACK, 1), (WritePolicy.SELECTIVE, 2)]
)
def test_write_back_becomes_write_through(policy: WritePolicy, hits: int) -> None:
    tiers = tiers_of(write_policy=policy)
    for _ in range(hits):
        assert not tiers.host.launch()
        tiers.finish(prefilled(tiers, words(1, 1025)))
    assert tiers.host.launch()


def test_a_flush_forgets_what_is_staged() -> None:
    tiers = tiers_of()
    served(tiers, words(1, 1025))
    tiers.evict(tokens=4096)
    prefetch = read(tiers, words(1, 1025))
    tiers.flush()
    tiers.prefetches.release(prefetch)
    assert free_staging(tiers) == (2048, 20)
    assert tiers.admit(words(1, 1025), staged=prefetch).computed_tokens == 0
    tiers.check_integrity()

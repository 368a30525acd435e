"""What was seen on a real SGLang 0.5.23, told as short stories, and the parts that no story reaches."""

from __future__ import annotations

import pytest

from serve.twin.tiers import Tiers
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import BrokenBooks, OutOfSlots, OutOfTokens, PrefetchPolicy, Tier, TierSettings
from serve.twin.tiers_request import Request

CHUNK = 1024


def words(source: int, tokens: int) -> Key:
    return Key([(source, 0, tokens)])


def hybrid(**changed: int | None) -> Tiers:
    settings: dict[str, int | None] = {
        "device_tokens": 8192,
        "device_slots": 32,
        "host_tokens": 16384,
        "host_slots": 64,
        "storage_tokens": None,
        "track_interval_tokens": 64,
        "prefetch_tokens": 64,
    }
    return Tiers(TierSettings(**(settings | changed)))  # type: ignore[arg-type]


def prefilled(tiers: Tiers, key: Key) -> Request:
    request = tiers.admit(key)
    while request.left_tokens:
        tiers.extend(request, min(CHUNK, request.left_tokens))
        tiers.checkpoint(request)
        tiers.settle()
        tiers.check_integrity()
    return request


def served(tiers: Tiers, key: Key, answer: Key | None = None) -> int:
    """Do a whole turn; how much of its prompt was cached."""
    request = prefilled(tiers, key)
    cached = request.device_hit_tokens + request.host_hit_tokens
    tiers.decode(request, answer or words(9_000_000 + len(key), 1))
    tiers.finish(request)
    tiers.settle()
    tiers.check_integrity()
    return cached


def test_a_repeat_starts_at_the_last_whole_grid_step() -> None:
    tiers = hybrid()
    assert [served(tiers, words(1, 500)) for _ in range(3)] == [0, 448, 448]


def test_an_aligned_repeat_finds_nothing_until_a_branch_is_kept() -> None:
    tiers = hybrid()
    assert [served(tiers, words(1, 640)) for _ in range(3)] == [0, 0, 576]


def test_a_divergence_is_paid_once() -> None:
    tiers = hybrid()
    served(tiers, words(1, 500))
    head = words(1, 300)
    assert [served(tiers, head + words(source, 200)) for source in (2, 3)] == [0, 256]


def test_a_dense_model_resumes_at_any_page() -> None:
    tiers = hybrid(device_slots=0, host_slots=0)
    served(tiers, words(1, 500))
    assert served(tiers, words(1, 300) + words(2, 200)) == 256


def test_each_chunk_leaves_a_state() -> None:
    tiers = hybrid()
    served(tiers, words(1, 2500))
    found = [tiers.match(words(1, tokens) + words(2, 100)).usable_tokens for tokens in (1000, 1500, 2100, 2500)]
    assert found == [0, 1024, 2048, 2496]


def test_a_decode_leaves_its_last_state_only() -> None:
    tiers = hybrid()
    context = words(1, 100) + words(2, 300)
    served(tiers, words(1, 100), words(2, 300))
    found = [tiers.match(context.cut(0, tokens)).usable_tokens for tokens in (130, 200, 260, 330, 390)]
    assert found == [64, 64, 64, 64, 384]


def test_prompts_in_flight_together_help_each_other_not() -> None:
    tiers = hybrid()
    requests = [tiers.admit(words(1, 500)) for _ in range(3)]
    assert [request.computed_tokens for request in requests] == [0, 0, 0]
    for request in requests:
        tiers.extend(request, 500)
        tiers.checkpoint(request)
        tiers.check_integrity()
    assert tiers.tree.evictable_tokens == 0


def test_an_abort_while_it_runs_keeps_what_can_be_resumed_and_a_retraction_does_not() -> None:
    tiers = hybrid()
    aborted, retracted = prefilled(tiers, words(1, 300)), prefilled(tiers, words(2, 300))
    for request, source in ((aborted, 3), (retracted, 4)):
        tiers.decode(request, words(source, 155))
    tiers.finish(aborted)
    tiers.retract(retracted)
    assert tiers.match(words(1, 300) + words(3, 155)).usable_tokens == 448
    assert tiers.match(words(2, 300) + words(4, 155)).usable_tokens == 256


def test_a_stop_that_the_client_does_not_see_falls_back_to_the_state_before() -> None:
    tiers = hybrid()
    request = prefilled(tiers, words(1, 300))
    tiers.decode(request, words(2, 150))
    tiers.finish(request, owned_tokens=447)
    assert tiers.match(words(1, 300) + words(2, 150)).usable_tokens == 384


def test_what_was_evicted_comes_back_from_l2_and_after_a_flush_from_l3() -> None:
    tiers = hybrid()
    context = words(1, 1300)
    served(tiers, context)
    tiers.evict(tokens=8192)
    found = tiers.match(context.cut(0, 1299))
    assert (found.tier, found.device_tokens, found.host_tokens) == (Tier.L2, 0, 1280)
    tiers.flush()
    assert tiers.match(context).tier is Tier.MISS
    prefetch = tiers.prefetch(context)
    assert prefetch is not None
    assert tiers.prefetches.finish(prefetch, tiers.prefetches.answer(prefetch)) == 1280
    assert served(tiers, context) == 1280


def test_a_state_evicted_alone_comes_back_from_l2() -> None:
    tiers = hybrid()
    served(tiers, words(1, 500))
    served(tiers, words(1, 500) + words(2, 500))
    tiers.evict(states=1)
    found = tiers.match(words(1, 499))
    assert (found.device_tokens, found.loads_state, found.tier) == (0, True, Tier.L2)


def test_without_l2_an_inner_state_is_lost_though_its_kv_stays() -> None:
    tiers = hybrid(host_tokens=0, host_slots=0, storage_tokens=0)
    served(tiers, words(1, 500))
    served(tiers, words(1, 500) + words(2, 500))
    tiers.evict(states=1)
    found = tiers.match(words(1, 499))
    assert (found.usable_tokens, found.kv_tokens) == (0, 448)


def test_a_cut_prefetch_is_lost_for_a_hybrid_and_kept_for_a_dense_model() -> None:
    for slots, gained in ((32, 0), (0, 512)):
        tiers = hybrid(device_slots=slots, host_slots=2 * slots)
        served(tiers, words(1, 1300))
        tiers.flush()
        prefetch = tiers.prefetch(words(1, 1300))
        assert prefetch is not None
        assert tiers.prefetches.answer(prefetch) == 1280
        tiers.check_integrity()
        assert tiers.prefetches.finish(prefetch, 550) == gained
        tiers.check_integrity()


def test_prefetches_leave_half_of_l2_to_others() -> None:
    tiers = hybrid(host_tokens=2048)
    assert tiers.prefetch(words(1, 1100)) is not None
    assert tiers.prefetch(words(2, 1100)) is None


@pytest.mark.parametrize(
    ("policy", "deadline_s"),
    [(PrefetchPolicy.BEST_EFFORT, 0.0), (PrefetchPolicy.WAIT_COMPLETE, None), (PrefetchPolicy.TIMEOUT, 1.5)],
)
def test_how_long_a_prefetch_may_take(policy: PrefetchPolicy, deadline_s: float | None) -> None:
    settings = TierSettings(device_tokens=8192, host_tokens=8192, storage_tokens=None, prefetch_policy=policy)
    tiers = Tiers(settings)
    prefetch = tiers.prefetch(words(1, 2049))
    assert prefetch is not None
    assert tiers.prefetches.deadline_s(prefetch) == deadline_s


def test_l3_drops_the_oldest_pages_and_what_lies_behind_them_is_out_of_reach() -> None:
    tiers = hybrid(device_slots=0, host_slots=0, storage_tokens=1024)
    served(tiers, words(1, 641))
    served(tiers, words(2, 641))
    tiers.flush()
    assert tiers.storage.used_tokens == 1024
    found = {}
    for source in (1, 2):
        prefetch = tiers.prefetch(words(source, 641))
        assert prefetch is not None
        found[source] = tiers.prefetches.answer(prefetch)
    assert found == {1: 0, 2: 640}


def test_who_asks_for_more_than_there_is_is_told_so() -> None:
    tiers = hybrid(device_slots=3, host_slots=6)
    request = tiers.admit(words(1, 9000))
    tiers.extend(request, 1024)
    with pytest.raises(OutOfTokens):
        tiers.extend(request, 7900)
    with pytest.raises(OutOfSlots):
        tiers.checkpoint(request)
    with pytest.raises(BrokenBooks):
        tiers.flush()
    tiers.check_integrity()


def test_broken_books_are_found() -> None:
    tiers = hybrid()
    served(tiers, words(1, 500))
    tiers.tree.free_tokens += 1
    with pytest.raises(BrokenBooks, match="L1 tokens"):
        tiers.check_integrity()


def test_keys_join_cut_and_compare_by_runs() -> None:
    key = Key([(1, 0, 10), (1, 10, 20), (2, 5, 5), (3, 0, 4)])
    assert key.runs == ((1, 0, 20), (3, 0, 4))
    assert key.cut(18, 22) == Key([(1, 18, 20), (3, 0, 2)])
    assert key.cut(20, 99).runs == ((3, 0, 4),)
    assert len(key.cut(5, 5)) == 0
    assert Key([(1, 3, 20), (3, 0, 9)]).common(key, 3) == 21
    assert Key([(1, 3, 20), (4, 0, 9)]).common(key, 3) == 17
    assert key.page(0, 4) != key.page(4, 4)
    assert key.page(18, 4) == Key([(1, 18, 20), (3, 0, 2)]).page(0, 4)

"""The residency index: pages by tier, what a context finds, whose it is, how well that was known."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from governor.residency import blocks as bits
from governor.residency.blocks import L3_KV, L3_STATE, Blocks, Tier
from governor.residency.index import SHARED, ContextKey, Limits, ResidencyIndex
from governor.residency.ledger import IDLE_BYTES, IDLE_TOKENS, Sizes, TierLedger
from governor.residency.names import PageNames, page_numbers, shared_pages
from governor.residency.predict import Prediction, Rules, predict
from governor.residency.score import Score, predicted_at
from governor.types import Usage
from serve.twin_server.content import Content

PAGE = 64
RULES = Rules(l3_least_tokens=2 * PAGE)
CHAIN = array("q", range(100, 110))
ME = ContextKey("hermes", "hermes/1")


def heard(*, has_states: bool = True) -> Blocks:
    """An engine that has told all, and has nothing."""
    blocks = Blocks()
    tell_all(blocks, has_states=has_states)
    return blocks


def tell_all(blocks: Blocks, *, has_states: bool = True) -> None:
    blocks.on_reset()
    blocks.on_cleared()
    blocks.on_model(page_tokens=PAGE, has_states=has_states)
    blocks.on_states(())
    blocks.on_l3_cleared()


def found(blocks: Blocks, pages: Sequence[int] = CHAIN, tokens: int = len(CHAIN) * PAGE) -> Prediction:
    return predict(blocks.places(pages), tokens, blocks.knowledge, RULES)


def split(prediction: Prediction) -> tuple[int | None, ...]:
    """In pages."""
    tiers = (prediction.l1_tokens, prediction.l2_tokens, prediction.l3_tokens, prediction.unusable_tokens)
    return tuple(None if each is None else each // PAGE for each in (*tiers, prediction.missing_tokens))


# Names


def test_pages_have_the_engine_s_numbers() -> None:
    """As the twin names them, whose names are held against vectors of SGLang's own C++."""
    ids = array("I", (each * 7919 % 150_000 for each in range(1000)))
    content = Content(PAGE)
    whole, _rest = content.context(ids).key.runs
    told = content.blocks(whole).block_hashes
    assert list(page_numbers(ids, PAGE)) == told


def test_names_grow_in_any_parts() -> None:
    ids = [each * 7919 % 150_000 for each in range(1000)]
    names = PageNames(PAGE)
    for start, stop in ((0, 1), (1, 63), (63, 200), (200, 200), (200, 1000)):
        names.extend(ids[start:stop])
    assert names.pages == page_numbers(ids, PAGE)
    assert len(names.pages) == 1000 // PAGE
    with pytest.raises(OverflowError):
        names.extend([1 << 32])


@pytest.mark.parametrize("same", [0, 1, 5, 10])
def test_shared_pages_are_counted(same: int) -> None:
    other = array("q", (page if at < same else -page for at, page in enumerate(CHAIN)))
    assert shared_pages(CHAIN, other) == same
    assert shared_pages(CHAIN, CHAIN[:same]) == same


# What a context finds


def test_a_dense_model_goes_on_from_any_page() -> None:
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN[:4], PAGE)
    blocks.on_stored(Tier.L2, CHAIN[:6], PAGE)
    assert split(found(blocks)) == (4, 2, 0, 0, 4)


def test_a_hybrid_model_goes_on_from_a_state() -> None:
    blocks = heard()
    blocks.on_stored(Tier.L1, CHAIN[:8], PAGE)
    blocks.on_stored(Tier.L2, CHAIN[:8], PAGE)
    assert split(found(blocks)) == (0, 0, 0, 8, 2)
    blocks.on_state(CHAIN[2], [Tier.L1])
    blocks.on_state(CHAIN[5], [Tier.L2])
    assert split(found(blocks)) == (3, 3, 0, 2, 2)
    blocks.on_state(CHAIN[5], [])
    assert split(found(blocks)) == (3, 0, 0, 5, 2)


def test_a_hole_ends_what_can_be_used() -> None:
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    blocks.on_removed(Tier.L1, [CHAIN[3]])
    assert split(found(blocks)) == (3, 0, 0, 6, 1)


def test_l3_gives_what_follows_up_to_a_state_and_no_less_than_a_span() -> None:
    blocks = heard()
    blocks.on_l3_written(CHAIN[:9], [CHAIN[6]])
    assert split(found(blocks)) == (0, 0, 7, 2, 1)
    blocks.on_l3_evicted(CHAIN[5], is_state=False)
    assert split(found(blocks)) == (0, 0, 0, 8, 2)
    blocks.on_l3_written(CHAIN[:1], [CHAIN[0]])
    assert split(found(blocks))[2] == 0, "one page is below the span"
    blocks.on_l3_written(CHAIN[:2], [CHAIN[1]])
    assert split(found(blocks))[2] == 2
    blocks.on_l3_evicted(CHAIN[1], is_state=True)
    assert split(found(blocks))[2] == 0


def test_l3_goes_on_behind_l2_only_where_that_has_a_copy() -> None:
    blocks = heard()
    blocks.on_l3_written(CHAIN, [CHAIN[9]])
    blocks.on_stored(Tier.L1, CHAIN[:4], PAGE)
    blocks.on_state(CHAIN[3], [Tier.L1])
    assert split(found(blocks)) == (4, 0, 0, 6, 0)
    without_l2 = predict(blocks.places(CHAIN), 640, blocks.knowledge, replace(RULES, l3_behind_l2=False))
    blocks.on_stored(Tier.L2, CHAIN[:4], PAGE)
    assert split(found(blocks)) == split(without_l2) == (4, 0, 6, 0, 0)


def test_what_l2_has_is_its_own_though_the_state_behind_it_is_l3_s() -> None:
    blocks = heard()
    blocks.on_stored(Tier.L2, CHAIN[:4], PAGE)
    blocks.on_l3_written(CHAIN, [CHAIN[7]])
    assert split(found(blocks)) == (0, 4, 4, 2, 0)


def test_a_prompt_s_last_page_that_is_not_whole_is_missing() -> None:
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    assert found(blocks, tokens=len(CHAIN) * PAGE + 17).missing_tokens == 17


# What is not known is not zero


def test_nothing_is_known_of_an_engine_that_does_not_tell() -> None:
    prediction = found(Blocks())
    assert (prediction.l1_tokens, prediction.usable_tokens, prediction.unknown_tokens) == (None, None, 640)
    assert prediction.why_unknown
    assert not prediction.is_whole


def test_without_the_plugin_nobody_knows_from_where_a_model_goes_on() -> None:
    blocks = Blocks()
    blocks.on_cleared()
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    assert found(blocks).usable_tokens is None
    blocks.on_model(page_tokens=PAGE, has_states=True)
    assert found(blocks).usable_tokens is None
    blocks.on_states([(CHAIN[4], [Tier.L1])])
    assert found(blocks).l1_tokens == 5 * PAGE
    blocks.on_states_lost()
    assert found(blocks).usable_tokens is None


def test_after_a_gap_what_is_not_told_of_is_unknown() -> None:
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    blocks.on_reset()
    blocks.on_stored(Tier.L1, CHAIN[:4], PAGE)
    prediction = found(blocks)
    assert (prediction.l1_tokens, prediction.unknown_tokens, prediction.is_whole) == (4 * PAGE, 6 * PAGE, False)
    blocks.on_computed(CHAIN)
    assert found(blocks).is_whole
    blocks.on_cleared()
    assert split(found(blocks)) == (0, 0, 0, 0, 10)


def test_l3_from_before_is_unknown_until_it_is_listed() -> None:
    blocks = heard(has_states=False)
    blocks.on_l3_written(CHAIN)
    blocks.on_anew(keeps_l3=True)
    blocks.on_cleared()
    blocks.on_model(page_tokens=PAGE, has_states=False)
    assert not found(blocks).is_whole
    blocks.on_anew(keeps_l3=False)
    blocks.on_model(page_tokens=PAGE, has_states=False)
    prediction = found(blocks)
    assert (prediction.l3_tokens, prediction.unknown_tokens) == (None, 640)
    blocks.on_l3_written(CHAIN[:9])
    blocks.on_l3_listed(set(CHAIN[:5]), set())
    assert split(found(blocks)) == (0, 0, 5, 0, 5)


def test_too_many_pages_make_l3_unknown_and_nothing_else() -> None:
    blocks = Blocks(most_pages=4)
    tell_all(blocks, has_states=False)
    blocks.on_l3_written(range(4))
    assert blocks.knowledge.l3
    blocks.on_l3_written(range(4, 9))
    assert (len(blocks), blocks.knowledge.l3, blocks.knowledge.kv_whole) == (4, False, True)
    blocks.on_l3_written(range(4, 9), [3, 8])
    assert (len(blocks), *blocks.places([3, 8])) == (4, L3_KV | L3_STATE, 0)
    blocks.on_l3_listed(set(range(2, 8)), set())
    assert (len(blocks), blocks.knowledge.l3) == (4, False)
    blocks.on_l3_listed({2, 3}, set())
    assert (len(blocks), blocks.knowledge.l3) == (2, True)


# Looking back


def test_a_mark_sees_what_was_there_then() -> None:
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN[:3], PAGE)
    mark = blocks.mark()
    blocks.on_stored(Tier.L1, CHAIN[3:8], PAGE)
    blocks.on_removed(Tier.L1, CHAIN[1:2])
    later = blocks.mark()
    blocks.on_removed(Tier.L1, CHAIN)
    for at, expected in ((mark, 3), (later, 1)):
        prediction = predicted_at(at, blocks, CHAIN, 10 * PAGE + 1, RULES)
        assert prediction is not None
        assert prediction.l1_tokens == expected * PAGE
    blocks.release(mark)
    assert predicted_at(later, blocks, CHAIN, 10 * PAGE + 1, RULES) is not None
    blocks.release(later)
    blocks.release(later)
    assert not blocks._changed_pages


def test_the_last_token_is_never_served() -> None:
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    prediction = predicted_at(blocks.mark(), blocks, CHAIN, 10 * PAGE, RULES)
    assert prediction is not None
    assert prediction.usable_tokens == 9 * PAGE


def test_marks_that_too_much_has_followed_are_lost() -> None:
    blocks = heard(has_states=False)
    old = blocks.mark()
    blocks.on_stored(Tier.L1, range(bits.MOST_CHANGES // 2 + 2), PAGE)
    young = blocks.mark()
    blocks.on_stored(Tier.L2, range(bits.MOST_CHANGES // 2 - 1), PAGE)
    assert predicted_at(old, blocks, CHAIN, 640, RULES) is None
    prediction = predicted_at(young, blocks, range(10), 641, RULES)
    assert prediction is not None
    assert (prediction.l1_tokens, prediction.l2_tokens) == (640, 0)


# Whose it is


def followed(**limits: int) -> tuple[Blocks, ResidencyIndex, TierLedger]:
    index, ledger = ResidencyIndex(Limits(look_again_s=0, **limits), RULES), TierLedger()
    blocks = Blocks((index, ledger))
    index.attach(blocks)
    tell_all(blocks, has_states=False)
    return blocks, index, ledger


def test_shared_beginnings_are_attributed_once() -> None:
    blocks, index, _ = followed()
    other = CHAIN[:4] + array("q", range(-6, 0))
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    index.on_answered(ME, "s1", CHAIN, 640, at=1.0)
    index.on_answered(ContextKey("hermes", "hermes/2"), "s1", CHAIN[:6], 400, at=1.5)
    assert index.held_pages(Tier.L1) == {"hermes": 10}
    index.on_answered(ContextKey("openclaw", "openclaw/1"), "s2", other, 640, at=2.0)
    blocks.on_stored(Tier.L1, other, PAGE)
    index.check_integrity()
    assert index.held_pages(Tier.L1) == {SHARED: 4, "hermes": 6, "openclaw": 6}
    last, _, first = index.standings(now=5.0)
    assert (last.key.agent, last.shared_tokens, last.prediction.l1_tokens) == ("openclaw", 4 * PAGE, 640)
    assert (first.key, first.shared_tokens) == (ME, 4 * PAGE)
    blocks.on_removed(Tier.L1, other[5:])
    assert index.held_pages(Tier.L1) == {SHARED: 4, "hermes": 6, "openclaw": 1}
    index.on_answered(ContextKey("openclaw", "openclaw/1"), "s2", other[4:], 384, at=3.0)
    assert index.held_pages(Tier.L1) == {"hermes": 10, "openclaw": 1}
    index.check_integrity()
    index.clear()
    assert index.held_pages(Tier.L1) == {}
    index.check_integrity()


def test_the_context_answered_longest_ago_goes_first() -> None:
    _, index, _ = followed(pages=25)
    for number in range(4):
        index.on_answered(ContextKey("a", str(number)), "s", array("q", range(number * 10, number * 10 + 10)), 640, 0.0)
        index.check_integrity()
    assert [each.key.context for each in index.standings(0.0)] == ["3", "2"]


def test_a_context_of_unknown_tokens_is_unknown() -> None:
    blocks, index, _ = followed()
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    index.on_answered(ME, "s1", CHAIN, 640, at=1.0)
    index.on_unfollowed(ME, "s1", 700, at=2.0, why="the engine did not tell its tokens")
    (standing,) = index.standings(now=0.0)
    assert standing.prediction.usable_tokens is None
    assert (standing.prediction.unknown_tokens, standing.shared_tokens) == (700, None)
    assert index.held_pages(Tier.L1) == {}


def test_a_look_is_kept_for_a_while() -> None:
    index = ResidencyIndex(Limits(look_again_s=1.0), RULES)
    blocks = Blocks((index,))
    index.attach(blocks)
    tell_all(blocks, has_states=False)
    index.on_answered(ME, "s1", CHAIN, 640, at=1.0)
    looks = []
    for now, stored in ((0.0, 2), (0.5, 4), (1.1, 6)):
        blocks.on_stored(Tier.L1, CHAIN[:stored], PAGE)
        looks.append(index.standings(now)[0].prediction.l1_tokens)
    assert looks == [2 * PAGE, 2 * PAGE, 6 * PAGE]


# What tiers are worth


def test_tiers_are_counted() -> None:
    blocks, _, ledger = followed()
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    blocks.on_stored(Tier.L2, CHAIN, PAGE)
    blocks.on_stored(Tier.L2, CHAIN, PAGE)
    blocks.on_removed(Tier.L1, CHAIN)
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    blocks.on_l3_written(CHAIN, [CHAIN[9]])
    ledger.on_served(Usage(cached_tokens=640, cached_device_tokens=320, cached_host_tokens=320))
    l1, l2, l3 = (ledger.figures(tier, PAGE, is_told=True) for tier in Tier)
    assert (l1.written_tokens, l1.held_tokens, l1.served_tokens, l1.write_amplification) == (1280, 640, 320, 2.0)
    assert (l2.written_tokens, l2.served_per_written, l2.write_amplification) == (640, 0.5, 1.0)
    assert (l3.written_tokens, l3.written_states, l3.served_tokens, l3.written_bytes) == (640, 1, 0, None)
    blocks.on_reset()
    assert ledger.figures(Tier.L1, PAGE, is_told=True).written_tokens == 0
    assert ledger.figures(Tier.L3, PAGE, is_told=True).written_tokens == 640


def test_after_a_gap_a_tiers_figures_are_of_the_same_time() -> None:
    blocks, _, ledger = followed()
    served = Usage(cached_tokens=640, cached_device_tokens=640, cached_host_tokens=0, cached_storage_tokens=0)
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    blocks.on_l3_written(CHAIN)
    ledger.on_served(served)
    blocks.on_reset()
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    ledger.on_served(served)
    blocks.on_l3_evicted(CHAIN[0], is_state=False)
    blocks.on_l3_written(CHAIN[:1])
    l1, l3 = (ledger.figures(tier, PAGE, is_told=True) for tier in (Tier.L1, Tier.L3))
    assert (l1.written_tokens, l1.served_tokens, l1.served_per_written) == (640, 640, 1.0)
    assert (l3.written_tokens, l3.write_amplification) == (704, 0.1)


def test_what_is_told_again_after_a_gap_is_no_complaint_of_a_tier_that_serves() -> None:
    ledger = TierLedger()
    blocks = Blocks((ledger,))
    pages = range(IDLE_TOKENS // PAGE + 1)
    blocks.on_stored(Tier.L2, pages, PAGE)
    ledger.on_served(Usage(cached_tokens=64, cached_device_tokens=0, cached_host_tokens=64, cached_storage_tokens=0))
    blocks.on_reset()
    blocks.on_stored(Tier.L2, pages, PAGE)
    l2 = ledger.figures(Tier.L2, PAGE, is_told=True)
    assert (l2.served_tokens, l2.complaint) == (0, None)
    blocks.on_anew(keeps_l3=False)
    ledger.on_served(Usage(cached_tokens=0, cached_device_tokens=0, cached_host_tokens=0, cached_storage_tokens=0))
    assert ledger.figures(Tier.L2, PAGE, is_told=True).complaint


def test_states_that_nobody_tells_of_are_not_none() -> None:
    ledger = TierLedger(Sizes(token_bytes=2.0, state_bytes=1000.0))
    blocks = Blocks((ledger,))
    blocks.on_stored(Tier.L1, CHAIN, PAGE)
    figures = ledger.figures(Tier.L1, PAGE, is_told=True, states_told=False)
    assert (figures.held_tokens, figures.held_states, figures.held_bytes) == (640, None, None)


def test_a_tier_that_only_takes_is_told_of() -> None:
    ledger = TierLedger(Sizes(token_bytes=100_000.0, state_bytes=1e9))
    blocks = Blocks((ledger,))
    tell_all(blocks)
    pages = range(int(IDLE_BYTES / 100_000 / PAGE) - 200)
    blocks.on_l3_written(pages)
    assert ledger.figures(Tier.L3, PAGE, is_told=True).complaint is None, "nobody has told of any serving"
    ledger.on_served(Usage(cached_tokens=0, cached_device_tokens=0, cached_host_tokens=0, cached_storage_tokens=0))
    assert ledger.figures(Tier.L3, PAGE, is_told=True).complaint is None, "not yet much"
    blocks.on_l3_written((), [1, 2])
    figures = ledger.figures(Tier.L3, PAGE, is_told=True)
    assert figures.complaint == f"L3 was written {len(pages) * PAGE:,} tokens (4.7 GB) and has served none of them"
    ledger.on_served(Usage(cached_tokens=64, cached_device_tokens=0, cached_host_tokens=0, cached_storage_tokens=64))
    assert ledger.figures(Tier.L3, PAGE, is_told=True).complaint is None
    assert ledger.figures(Tier.L2, PAGE, is_told=False).written_tokens is None


# How well it was known


def test_the_published_figure() -> None:
    score = Score(recent=2)
    blocks = heard(has_states=False)
    blocks.on_stored(Tier.L1, CHAIN[:4], PAGE)
    said = predicted_at(blocks.mark(), blocks, CHAIN, 641, RULES)
    assert said is not None
    for device, host in ((256, 0), (320, 0), (0, 256), (640, 0)):
        usage = Usage(
            cached_tokens=device + host, cached_device_tokens=device, cached_host_tokens=host, cached_storage_tokens=0
        )
        score.note("t", said, usage, PAGE)
    score.note("t", said, Usage(cached_tokens=256), PAGE)
    score.note("t", said, Usage(), PAGE)
    score.note("t", None, Usage(cached_tokens=256), PAGE)
    figures = score.since_start
    assert (figures.turns, figures.within_page, figures.equal, figures.unknown) == (5, 4, 3, 2)
    assert (figures.tier_turns, figures.tier_right) == (4, 2)
    assert (score.recent.turns, score.recent.unknown) == (0, 2)
    assert [miss.served[0] for miss in score.misses] == [0, 640]

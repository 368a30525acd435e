"""Each lost token has one cause, by where the prompt's pages were; and a price, by how fast the engine computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.context import COMPRESSED, FIRST_PROMPT, FRESH, NOT_CACHED, EngineLoss
from governor.residency.blocks import L1_KV, L1_STATE, L2_KV, L2_STATE, L3_KV, L3_STATE, Knowledge
from governor.residency.loss import LEAST_LOSS_TOKENS, Asked, Found, Part, Since, parts_of
from governor.residency.predict import Rules, predict
from governor.residency.prefill import PrefillRate
from governor.tokens.breaks import Break, BreakCause
from governor.types import PromptShape, Usage

PAGE = 64
HELD, STATE, DISK, DISK_STATE, GONE = L1_KV, L1_KV | L1_STATE, L3_KV, L3_KV | L3_STATE, 0


def asked(prompt: int, cached: int | None, known: int | None = None, **facts: object) -> Asked:
    plain: dict[str, object] = {
        "shape": PromptShape.CONTINUATION,
        "usage": Usage(prompt_tokens=prompt, cached_tokens=cached),
        "before_tokens": known,
        "known_tokens": known,
    }
    return Asked(**{**plain, **facts})  # type: ignore[arg-type]


def found(pages: list[int], prompt: int, *, has_states: bool = True, shared: int | None = None) -> Found:
    known = Knowledge(page_tokens=PAGE, kv=True, kv_whole=True, has_states=has_states, states=True, l3=True)
    here = bytes(pages)
    return Found(
        predicted=predict(here, prompt, known, Rules()),
        here=here,
        page_tokens=PAGE,
        has_states=has_states,
        shared_pages=shared,
    )


def test_what_was_served_as_expected_is_no_loss() -> None:
    pages = [STATE] * 100
    assert parts_of(asked(6_500, 6_400, 6_420), found(pages, 6_500), Since()) == ()


def test_less_than_an_engine_computes_again_anyway_is_no_loss() -> None:
    assert parts_of(asked(6_500, 6_400 - LEAST_LOSS_TOKENS + 1, 6_400), None, Since()) == ()


@pytest.mark.parametrize(
    ("since", "cause"),
    [
        (Since(), EngineLoss.EVICTED),
        (Since(flushed=True), EngineLoss.FLUSHED),
        (Since(restarted=True, flushed=True), EngineLoss.ENGINE_RESTARTED),
    ],
)
def test_what_is_in_no_tier_was_evicted_unless_more_is_known(since: Since, cause: str) -> None:
    assert parts_of(asked(6_500, 0, 6_400), found([GONE] * 101, 6_500), since) == (Part(cause, 6_400),)


@pytest.mark.parametrize(
    ("since", "cause"),
    [
        (Since(), NOT_CACHED),
        (Since(flushed=True), EngineLoss.FLUSHED),
        (Since(restarted=True), EngineLoss.ENGINE_RESTARTED),
    ],
)
def test_an_engine_that_does_not_tell(since: Since, cause: str) -> None:
    assert parts_of(asked(6_500, 0, 6_400), None, since) == (Part(cause, 6_400),)


def test_kv_without_a_state_lacks_the_state() -> None:
    pages = [HELD] * 19 + [STATE] + [HELD] * 80 + [GONE]
    parts = parts_of(asked(6_500, 20 * PAGE, 6_400), found(pages, 6_500), Since())
    assert parts == (Part(EngineLoss.STATE_MISSING, 80 * PAGE),)


def test_a_hole_is_to_blame_for_what_lies_behind_it() -> None:
    pages = [STATE] * 20 + [GONE] * 10 + [STATE] * 70
    parts = parts_of(asked(6_500, 20 * PAGE, 6_400), found(pages, 6_500), Since())
    assert parts == (Part(EngineLoss.EVICTED, 80 * PAGE),)


def test_what_lacks_a_state_and_what_is_gone_are_told_apart() -> None:
    pages = [HELD] * 60 + [GONE] * 40
    parts = parts_of(asked(6_500, 0, 6_400), found(pages, 6_500), Since())
    assert parts == (Part(EngineLoss.STATE_MISSING, 60 * PAGE), Part(EngineLoss.EVICTED, 40 * PAGE))


def test_a_read_of_l3_that_came_to_nothing() -> None:
    pages = [STATE] * 20 + [DISK_STATE] * 80
    told = Usage(prompt_tokens=6_500, cached_tokens=1_280, cached_device_tokens=1_280, cached_storage_tokens=0)
    parts = parts_of(asked(6_500, None, 6_400, usage=told), found(pages, 6_500), Since())
    assert parts == (Part(EngineLoss.L3_NOT_READ, 80 * PAGE),)


def test_a_part_of_l3_too_short_to_be_asked_for() -> None:
    rules, pages = Rules(l3_least_tokens=1_024), [STATE] * 90 + [DISK_STATE] * 10
    known = Knowledge(page_tokens=PAGE, kv=True, kv_whole=True, has_states=True, states=True, l3=True)
    seen = Found(
        predicted=predict(bytes(pages), 6_500, known, rules), here=bytes(pages), page_tokens=PAGE, has_states=True
    )
    assert parts_of(asked(6_500, 90 * PAGE, 6_400), seen, Since()) == (Part(EngineLoss.L3_NOT_READ, 10 * PAGE),)


def test_what_was_there_and_was_not_served() -> None:
    pages = [STATE] * 100
    assert parts_of(asked(6_500, 640, 6_400), found(pages, 6_500), Since()) == (Part(EngineLoss.NOT_USED, 5_760),)


def test_messages_that_became_other_tokens() -> None:
    pages = [STATE] * 30 + [GONE] * 71
    parts = parts_of(asked(6_500, 30 * PAGE, 6_400), found(pages, 6_500, shared=30), Since())
    assert parts == (Part(EngineLoss.OTHER_TOKENS, 6_400 - 30 * PAGE),)


def test_a_clients_break_is_the_clients_and_the_rest_the_engines() -> None:
    broke = Break(cause=BreakCause.EDITED, message=7, byte=3)
    branch = asked(6_500, 0, before_tokens=6_400, known_tokens=2_000, shape=PromptShape.BRANCH, broke=broke)
    parts = parts_of(branch, found([GONE] * 101, 6_500), Since())
    assert parts == (Part("edited", 4_400, is_clients=True), Part(EngineLoss.EVICTED, 2_000))


def test_what_a_break_leaves_is_known_to_the_page_though_nothing_was_reported() -> None:
    broke = Break(cause=BreakCause.EDITED, message=7, byte=3)
    branch = asked(6_500, 0, before_tokens=6_400, known_tokens=None, broke=broke, shape=PromptShape.BRANCH)
    parts = parts_of(branch, found([GONE] * 101, 6_500, shared=98), Since(restarted=True))
    assert parts == (Part(EngineLoss.ENGINE_RESTARTED, 98 * PAGE), Part("edited", 128, is_clients=True))


def test_a_carrier_costs_no_more_than_its_size() -> None:
    broke = Break(cause=BreakCause.CARRIER_MOVED, message=7, byte=3)
    moved = asked(6_500, 0, before_tokens=6_400, known_tokens=None, broke=broke, carrier_tokens=150)
    parts = parts_of(moved, found([GONE] * 101, 6_500, shared=10), Since())
    assert parts == (
        Part(EngineLoss.OTHER_TOKENS, 6_250 - 11 * PAGE),
        Part(EngineLoss.EVICTED, 11 * PAGE),
        Part("carrier_moved", 150, is_clients=True),
    )


def test_what_an_engine_computes_again_anyway_is_not_the_clients() -> None:
    broke = Break(cause=BreakCause.CARRIER_MOVED, message=7, byte=3)
    moved = asked(6_500, 6_200, before_tokens=6_400, known_tokens=6_300, broke=broke, carrier_tokens=100)
    assert parts_of(moved, None, Since()) == (Part("carrier_moved", 100, is_clients=True),)


def test_a_break_whose_price_is_not_told() -> None:
    broke = Break(cause=BreakCause.VOLATILE, message=0, byte=3)
    branch = asked(6_500, None, before_tokens=6_400, shape=PromptShape.BRANCH, broke=broke)
    assert parts_of(branch, None, Since()) == (Part("volatile", None, is_clients=True),)


def test_what_the_governor_made_shorter() -> None:
    shorter = asked(3_000, 500, before_tokens=6_400, known_tokens=None, is_compressed=True)
    assert parts_of(shorter, None, Since()) == (Part(COMPRESSED, 2_500),)


def test_a_first_prompt_is_told_and_another_beginning_is_not_taken_for_one() -> None:
    fresh = asked(3_000, 0, shape=PromptShape.FRESH)
    assert parts_of(fresh, None, Since()) == (Part(FIRST_PROMPT, 3_000),)
    again = asked(3_000, 0, before_tokens=6_400, known_tokens=None, shape=PromptShape.FRESH)
    assert parts_of(again, None, Since()) == (Part(FRESH, 3_000),)


def test_a_title_loses_only_what_the_engine_loses() -> None:
    broke = Break(cause=BreakCause.EDITED, message=7, byte=3)
    side = asked(6_500, 0, before_tokens=6_400, known_tokens=None, shape=PromptShape.BRANCH, broke=broke, is_main=False)
    assert parts_of(side, None, Since()) == ()


BITS = st.sampled_from(
    [GONE, L1_KV, L2_KV, L3_KV, L1_KV | L1_STATE, L2_KV | L2_STATE, L3_KV | L3_STATE, L1_KV | L2_KV | L3_KV | L2_STATE]
)


@given(
    pages=st.lists(BITS, min_size=1, max_size=40),
    known=st.integers(0, 3_000),
    cached=st.integers(0, 3_000),
    has_states=st.booleans(),
    shared=st.none() | st.integers(0, 40),
    restarted=st.booleans(),
)
def test_all_that_is_lost_is_attributed_once(
    pages: list[int], known: int, cached: int, has_states: bool, shared: int | None, restarted: bool
) -> None:
    prompt = len(pages) * PAGE + 1
    cached = min(cached, prompt)
    seen = found(pages, prompt, has_states=has_states, shared=shared)
    parts = parts_of(asked(prompt, cached, known), seen, Since(restarted=restarted))
    lost = min(known, prompt) - cached
    assert sum(part.tokens or 0 for part in parts) == (lost if lost >= LEAST_LOSS_TOKENS else 0)
    assert all(part.tokens for part in parts)
    assert len({part.cause for part in parts}) == len(parts)


def rate_of(*samples: tuple[int, float]) -> PrefillRate:
    rate = PrefillRate()
    for tokens, seconds in samples:
        rate.note(tokens, seconds)
    return rate


def test_no_price_is_made_up() -> None:
    assert rate_of().speed is None
    assert rate_of((100, 1.0), (1_000, 0.0)).speed is None  # too short to tell


def test_a_price_has_a_margin() -> None:
    one = rate_of((1_000, 1.0)).speed
    assert one is not None
    assert (one.tokens_per_s, one.low, one.high) == (1_000, 500, 1_500)
    rate = rate_of((1_000, 1.0), (2_000, 1.0), (3_000, 2.0))
    speed = rate.speed
    assert speed is not None
    assert (speed.tokens_per_s, speed.low, speed.high, speed.samples) == (1_500, 1_000, 2_000, 3)
    price = speed.price(3_000)
    assert (price.seconds, price.margin_s) == (2.0, 1.0)
    rate.clear()
    assert rate.speed is None

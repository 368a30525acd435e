"""When compression may be tried, what counts as one, and that it stops."""

from __future__ import annotations

import random

import pytest

from bench.histories import seeded
from governor.compress.limits import Limits, limits_of
from governor.compress.verify import Attempt, Outcome, Permit, Record, can_try, digest_prompt, judge, on_prompt
from governor.policy.model import CompressionPolicy

LIMITS = Limits(trigger_tokens=800, target_tokens=500, gain_tokens=100, recent_tokens=150, oversized_tokens=250)
ATTEMPTS, COOLDOWN = 2, 50


def attempt(before: str, after: str | None, after_tokens: int = 400, before_tokens: int = 900) -> Attempt:
    return Attempt(
        before_digest=before.encode(),
        before_tokens=before_tokens,
        after_digest=None if after is None else after.encode(),
        after_tokens=after_tokens,
    )


def permit(record: Record, digest: str, tokens: int) -> Permit:
    return can_try(record, digest.encode(), tokens, limits=LIMITS, attempts=ATTEMPTS, cooldown_tokens=COOLDOWN)


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (attempt("a", "b", 500), Outcome.ACCEPTED),
        (attempt("a", "b", 501), Outcome.ABOVE_TARGET),
        (attempt("a", "b", 500, before_tokens=599), Outcome.GAIN_TOO_SMALL),
        (attempt("a", "b", 950), Outcome.ABOVE_TARGET),
        (attempt("a", "a", 400), Outcome.UNCHANGED),
        (attempt("a", None), Outcome.NO_RESULT),
    ],
)
def test_outcomes(made: Attempt, outcome: Outcome) -> None:
    assert judge(Record(), made, LIMITS)[0] is outcome


def test_only_below_its_trigger_a_prompt_is_left_alone() -> None:
    assert permit(Record(), "a", 799) is Permit.BELOW_TRIGGER
    assert permit(Record(), "a", 800) is Permit.TRY


def test_after_an_accepted_one_the_prompt_must_grow() -> None:
    _, record = judge(
        Record(), attempt("a", "b", 790, before_tokens=2000), Limits(**{**_fields(), "target_tokens": 795})
    )
    assert permit(record, "c", 810) is Permit.COOLING_DOWN
    assert permit(record, "c", 840) is Permit.TRY


def test_the_same_prompt_again_gets_the_same_again() -> None:
    _, record = judge(Record(), attempt("a", "b"), LIMITS)
    assert permit(record, "a", 900) is Permit.TRY
    assert judge(record, attempt("a", "b"), LIMITS)[0] is Outcome.ACCEPTED


def test_another_prompt_that_comes_out_the_same_is_a_fixed_point() -> None:
    _, record = judge(Record(), attempt("a", "b"), LIMITS)
    assert judge(record, attempt("c", "b"), LIMITS)[0] is Outcome.FIXED_POINT


def test_what_missed_is_not_tried_again_and_two_misses_stop_it() -> None:
    outcome, record = judge(Record(), attempt("a", "b", 700), LIMITS)
    assert outcome is Outcome.ABOVE_TARGET
    assert permit(record, "a", 900) is Permit.FAILED_BEFORE
    assert permit(record, "c", 920) is Permit.COOLING_DOWN
    assert permit(record, "c", 960) is Permit.TRY
    _, record = judge(record, attempt("c", None, before_tokens=960), LIMITS)
    assert record.misses == 2
    assert permit(record, "d", 5000) is Permit.STOPPED


def test_a_prompt_below_the_trigger_gives_new_attempts() -> None:
    record = Record()
    for name in "ab":
        _, record = judge(record, attempt(name, None), LIMITS)
    assert on_prompt(record, 800, LIMITS) == record
    relieved = on_prompt(record, 799, LIMITS)
    assert (relieved.misses, relieved.missed) == (0, ())
    assert permit(relieved, "a", 960) is Permit.TRY


def test_an_accepted_one_ends_the_row() -> None:
    _, record = judge(Record(), attempt("a", None), LIMITS)
    _, record = judge(record, attempt("b", "c"), LIMITS)
    assert record.misses == 0


def test_never_more_misses_in_a_row_than_allowed() -> None:
    """Clients that send any size, any prompt again and again, with results that fail in each way."""
    for seed in range(20):
        random_, record, row = seeded(seed), Record(), 0
        for _ in range(500):
            tokens, name = random_.randrange(600, 3000), f"p{random_.randrange(40)}"
            if tokens < LIMITS.trigger_tokens:
                row = 0
            record = on_prompt(record, tokens, LIMITS)
            if permit(record, name, tokens) is not Permit.TRY:
                continue
            outcome, record = judge(record, _any_attempt(random_, name, tokens), LIMITS)
            row = 0 if outcome is Outcome.ACCEPTED else row + 1
            assert row <= ATTEMPTS
            assert len(record.missed) <= 8


def test_a_prompt_s_digest_is_of_its_bytes() -> None:
    prompts = [([b"ab", b"c"], None), ([b"a", b"bc"], None), ([b"abc"], None), ([b"abc"], b"[]")]
    assert len({digest_prompt(messages, tools) for messages, tools in prompts}) == 4


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CompressionPolicy(), (80_000, 50_000, 10_000, 15_000, 25_000)),
        (CompressionPolicy(trigger=60_000, target=0.7), (60_000, 50_000, 10_000, 15_000, 25_000)),
        (CompressionPolicy(trigger=1.0, target=40_000, gain=500), (100_000, 40_000, 500, 15_000, 25_000)),
    ],
)
def test_shares_and_tokens_in_a_window(policy: CompressionPolicy, expected: tuple[int, ...]) -> None:
    it = limits_of(policy, 100_000)
    assert (it.trigger_tokens, it.target_tokens, it.gain_tokens, it.recent_tokens, it.oversized_tokens) == expected


def _fields() -> dict[str, int]:
    return {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}


def _any_attempt(random_: random.Random, name: str, tokens: int) -> Attempt:
    after = random_.choice([None, name, "same", f"{name}'"])
    return attempt(name, after, random_.randrange(300, 900), before_tokens=tokens)

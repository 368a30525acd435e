"""Where two greedy outputs may part, and how differences are counted."""

from __future__ import annotations

import math

import pytest

from serve.canary.cases import Plan, make_plan
from serve.canary.judge import COLD_MAX, Answer, difference, judge
from serve.canary.model import Checkpoints, Choice, OutputToken, Probe, Split, Stage, Tier, Verdict, Written
from tests.canary_engine import facts_of

FACTS = facts_of(Checkpoints.EXTRA_BUFFER)
PLAN: Plan = make_plan(FACTS, "s", quick=True)
(CASE,) = PLAN.cases


def out(*best: tuple[int, float]) -> OutputToken:
    choices = tuple(Choice(token, logprob) for token, logprob in best)
    return OutputToken(choices[0], choices)


def probe(cached: int, split: Split | None, *output: OutputToken, score: float | None = -2.0) -> Probe:
    return Probe(cached_tokens=cached, split=split, ttft_ms=1.0, scores=(score, -1.0), output=output)


def verdict(cold: Probe, l1: Probe, l3: Probe) -> Verdict:
    answers = [
        Answer(stage, CASE.shape, said)
        for stage, said in ((Stage.COLD, cold), (Stage.L1, l1), (Stage.L1_AGAIN, l1), (Stage.L3, l3))
    ]
    report = judge(FACTS, PLAN, answers, {Stage.L2: "left out"})
    return next(tier.verdict for tier in report.tiers if tier.tier is Tier.L3)


DEVICE, STORAGE = Split(device=512), Split(storage=512)
CLEAR = out((7, -0.1), (8, -3.0))
OTHER = out((8, -0.1), (7, -3.0))


@pytest.mark.parametrize(
    ("cold", "hit", "expected"),
    [
        (CLEAR, CLEAR, Verdict.SERVED),
        (CLEAR, OTHER, Verdict.WRONG),
        (out((7, -0.7), (8, -0.9)), out((8, -0.7), (7, -0.9)), Verdict.SERVED),  # rounding decides between them
        (out((7, -0.1), (9, -3.0)), out((8, -0.1), (9, -3.0)), Verdict.WRONG),  # not even among the best
    ],
    ids=["same", "clearly another", "a near tie", "unthought of"],
)
def test_an_output_may_part_from_the_cold_one_only_at_a_tie(
    cold: OutputToken, hit: OutputToken, expected: Verdict
) -> None:
    l1, l3 = probe(512, DEVICE, hit), probe(512, STORAGE, hit)
    assert verdict(probe(0, None, cold), l1, l3) is expected


def test_between_hits_of_one_depth_the_same_tie_is_a_fault() -> None:
    near, far = out((7, -0.7), (8, -0.9)), out((8, -0.7), (7, -0.9))
    assert verdict(probe(0, None, near), probe(512, DEVICE, near), probe(512, STORAGE, far)) is Verdict.WRONG


def test_a_shallower_hit_is_compared_with_cold_and_told() -> None:
    cold, l1 = probe(0, None, CLEAR), probe(512, DEVICE, CLEAR)
    short = probe(256, Split(storage=256), CLEAR, score=-2.1)
    answers = [Answer(stage, CASE.shape, p) for stage, p in ((Stage.COLD, cold), (Stage.L1, l1), (Stage.L3, short))]
    report = judge(FACTS, PLAN, answers, {})
    row = report.rows[-1]
    assert (row.verdict, row.against) == (Verdict.SERVED, Stage.COLD)
    assert "only 256 of 512" in report.tiers[-1].reason


def test_a_lower_tier_in_place_of_l2_leaves_l2_empty() -> None:
    cold = probe(0, None, CLEAR)
    answers = [Answer(Stage.COLD, CASE.shape, cold), Answer(Stage.L2, CASE.shape, probe(512, STORAGE, CLEAR))]
    (l2,) = (tier for tier in judge(FACTS, PLAN, answers, {}, Written(0, 5)).tiers if tier.tier is Tier.L2)
    assert l2.verdict is Verdict.EMPTY
    assert "L3 512 served instead" in l2.reason
    assert l2.reason.endswith("0 tokens were written to it meanwhile")


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_what_is_no_number_is_infinitely_far(missing: float | None) -> None:
    ours, theirs = probe(0, None), probe(0, None, score=missing)
    assert difference(ours, theirs).largest == math.inf
    assert (
        verdict(probe(0, None, CLEAR), probe(512, DEVICE, CLEAR), probe(512, STORAGE, score=missing)) is Verdict.WRONG
    )


def test_answers_without_scores_cannot_be_equal() -> None:
    bare = Probe(cached_tokens=0, split=None, ttft_ms=1.0)
    assert difference(bare, bare).largest == math.inf
    assert difference(probe(0, None), probe(0, None, score=-2.0 - COLD_MAX)).largest == COLD_MAX

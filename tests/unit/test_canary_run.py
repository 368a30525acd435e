"""The whole canary before an engine whose tiers serve, lie, break or are missing."""

from __future__ import annotations

import math

import pytest

from governor.errors import UpstreamError
from serve.canary.judge import SWITCH_OFF
from serve.canary.model import Checkpoints, EngineFacts, Report, Shape, Stage, Tier, Verdict
from serve.canary.run import run_canary
from tests.canary_engine import Faults, TierEngine, facts_of

EXTRA = facts_of(Checkpoints.EXTRA_BUFFER)


async def report_of(faults: Faults, facts: EngineFacts = EXTRA) -> Report:
    return await run_canary(TierEngine(facts, faults), seed="s")


def verdicts(report: Report) -> dict[Tier, Verdict]:
    return {result.tier: result.verdict for result in report.tiers}


def reason(report: Report, tier: Tier) -> str:
    return next(result.reason for result in report.tiers if result.tier is tier)


def others_served(report: Report, tier: Tier) -> bool:
    return all(verdict is Verdict.SERVED for other, verdict in verdicts(report).items() if other is not tier)


@pytest.mark.parametrize("checkpoints", Checkpoints)
async def test_an_honest_engine_passes_and_reuses_what_the_rules_say(checkpoints: Checkpoints) -> None:
    report = await report_of(Faults(), facts_of(checkpoints))
    assert report.passed
    assert set(verdicts(report).values()) == {Verdict.SERVED}
    shapes = {row.shape for row in report.rows}
    assert shapes == ({Shape.CONTINUATION} if checkpoints is Checkpoints.NO_BUFFER else set(Shape))
    for row in report.rows:
        assert row.verdict is Verdict.SERVED, row
        assert row.served is not None
        if row.stage.tier is not None:
            assert row.served.of(row.stage.tier) == row.expected_tokens, row
    assert report.noise == 0.0
    assert all(row.max_dlogprob == 0.0 for row in report.rows if row.against is Stage.L1)
    assert all(0 < (row.max_dlogprob or 0) < 0.01 for row in report.rows if row.stage is Stage.L1)


async def test_a_restart_is_proven_where_it_can_be_had_and_its_lack_is_said() -> None:
    engine = TierEngine(EXTRA)
    report = await run_canary(engine, seed="s", restart=engine.restart)
    assert engine.restarts == 1
    asked_again = [row for row in report.rows if row.stage is Stage.RESTART]
    assert len(asked_again) == len(Shape)
    assert all(row.verdict is Verdict.SERVED and row.served and row.served.storage for row in asked_again)
    assert not any("restart" in note for note in report.notes)
    assert any("not after a restart" in note for note in (await report_of(Faults())).notes)


@pytest.mark.parametrize("tier", Tier)
async def test_a_tier_that_gives_nothing_back_is_named(tier: Tier) -> None:
    report = await report_of(Faults(empty=frozenset({tier})))
    assert verdicts(report)[tier] is Verdict.EMPTY
    assert not report.passed
    assert next(result for result in report.tiers if result.tier is tier).switch_off == SWITCH_OFF[tier]


async def test_what_was_written_and_not_given_back_is_told() -> None:
    report = await report_of(Faults(empty=frozenset({Tier.L3})))
    assert "tokens were written to it meanwhile" in reason(report, Tier.L3)
    assert not reason(report, Tier.L3).split("; ")[-1].startswith("0 ")
    assert others_served(report, Tier.L3)


@pytest.mark.parametrize("tier", [Tier.L2, Tier.L3])
async def test_a_claimed_hit_that_was_computed_anew_is_no_hit(tier: Tier) -> None:
    report = await report_of(Faults(claims=frozenset({tier})))
    assert verdicts(report)[tier] is Verdict.EMPTY
    assert "that of a cold run" in reason(report, tier)
    assert others_served(report, tier)


@pytest.mark.parametrize("off", [0.01, 2.0, math.nan])
@pytest.mark.parametrize("tier", [Tier.L2, Tier.L3])
async def test_wrong_pages_are_found_however_little_they_change(tier: Tier, off: float) -> None:
    report = await report_of(Faults(garbled={tier: off}))
    assert verdicts(report)[tier] is Verdict.WRONG
    assert others_served(report, tier)


@pytest.mark.parametrize("off", [2.0, math.nan])
async def test_wrong_pages_in_l1_do_not_make_the_others_wrong(off: float) -> None:
    report = await report_of(Faults(garbled={Tier.L1: off}))
    assert verdicts(report)[Tier.L1] is Verdict.WRONG
    assert others_served(report, Tier.L1)
    lower = [row for row in report.rows if row.stage in (Stage.L2, Stage.L3)]
    assert {row.against for row in lower} == {Stage.COLD}


@pytest.mark.parametrize("tier", Tier)
async def test_another_output_from_the_same_prompt_is_wrong(tier: Tier) -> None:
    report = await report_of(Faults(other_output=frozenset({tier})))
    assert verdicts(report)[tier] is Verdict.WRONG
    assert "output token 4" in reason(report, tier)
    assert others_served(report, tier)


async def test_a_tier_that_breaks_the_engine_is_wrong() -> None:
    report = await report_of(Faults(fails=frozenset({Tier.L2})))
    assert verdicts(report)[Tier.L2] is Verdict.WRONG
    assert "illegal memory access" in reason(report, Tier.L2)


async def test_sampling_at_temperature_0_is_told_and_no_tier_is_blamed() -> None:
    report = await report_of(Faults(ignores_temperature=True))
    assert not report.passed
    assert set(verdicts(report).values()) == {Verdict.SERVED}
    assert any("temperature 0" in problem for problem in report.problems)


async def test_reuse_of_a_prompt_never_seen_is_told() -> None:
    report = await report_of(Faults(claims_unseen=True))
    assert not report.passed
    assert any("never seen" in problem for problem in report.problems)


async def test_an_engine_that_repeats_itself_loosely_is_held_to_what_it_can() -> None:
    loose = await report_of(Faults(noise=0.02))
    assert loose.passed
    assert 0.01 < loose.noise <= 0.02
    assert verdicts(await report_of(Faults(noise=0.02, garbled={Tier.L3: 0.2})))[Tier.L3] is Verdict.WRONG


async def test_without_a_split_nothing_is_proven() -> None:
    report = await report_of(Faults(tells_no_split=True))
    assert set(verdicts(report).values()) == {Verdict.SKIPPED}
    assert report.passed


@pytest.mark.parametrize(
    ("changes", "tier", "words"),
    [
        ({"radix_cache": False}, Tier.L1, "--disable-radix-cache"),
        ({"host_tier": False}, Tier.L2, "has no L2"),
        ({"storage": None}, Tier.L3, "has no L3"),
        ({"host_states": 40}, Tier.L2, "L2 holds 40 states"),
        ({"host_tokens": 4096}, Tier.L2, "L2 holds 4,096 tokens"),
    ],
)
async def test_a_tier_that_cannot_be_asked_is_skipped_with_the_reason(
    changes: dict[str, object], tier: Tier, words: str
) -> None:
    report = await report_of(Faults(), facts_of(Checkpoints.EXTRA_BUFFER, **changes))
    assert verdicts(report)[tier] is Verdict.SKIPPED
    assert words in reason(report, tier)
    assert others_served(report, tier)
    assert report.passed


async def test_a_flush_that_is_refused_leaves_l3_unproven() -> None:
    report = await report_of(Faults(is_busy=True))
    assert verdicts(report)[Tier.L3] is Verdict.SKIPPED
    assert "at work" in reason(report, Tier.L3)


async def test_a_prompt_that_no_flood_pushes_out_of_l1_proves_nothing_of_l2() -> None:
    report = await report_of(Faults(extra_slots=500))
    assert verdicts(report)[Tier.L2] is Verdict.SKIPPED
    assert "still in L1" in reason(report, Tier.L2)
    assert verdicts(report)[Tier.L3] is Verdict.SERVED


async def test_the_cheap_flood_comes_first_and_the_next_only_for_what_is_left() -> None:
    cheap, stubborn = TierEngine(EXTRA), TierEngine(EXTRA, Faults(extra_slots=500))
    for engine in (cheap, stubborn):
        await run_canary(engine, seed="s")
    longest = [max(len(question.prompt) for question in engine.asked) for engine in (cheap, stubborn)]
    assert longest[0] < longest[1] == 2048


async def test_a_flood_that_would_push_the_prompts_out_of_l2_as_well_is_left_out() -> None:
    engine = TierEngine(facts_of(Checkpoints.EXTRA_BUFFER, host_tokens=9000), Faults(extra_slots=500))
    report = await run_canary(engine, seed="s")
    assert max(len(question.prompt) for question in engine.asked) < 1000
    assert verdicts(report)[Tier.L2] is Verdict.SKIPPED
    assert "still in L1" in reason(report, Tier.L2)


async def test_quick_asks_one_shape() -> None:
    report = await run_canary(TierEngine(EXTRA), seed="s", quick=True)
    assert report.passed
    assert {row.shape for row in report.rows} == {Shape.CONTINUATION}
    assert {row.stage for row in report.rows} == {Stage.COLD, Stage.L1, Stage.L1_AGAIN, Stage.L2, Stage.L3}


async def test_each_run_asks_new_prompts_unless_a_seed_is_given() -> None:
    engine = TierEngine(EXTRA)
    first, second = [await run_canary(engine) for _ in range(2)]
    assert first.passed
    assert second.passed
    assert first.seed != second.seed


async def test_an_engine_that_fails_before_any_tier_is_no_verdict() -> None:
    class Broken(TierEngine):
        async def facts(self) -> EngineFacts:
            raise UpstreamError("no engine")

    with pytest.raises(UpstreamError):
        await run_canary(Broken(EXTRA))

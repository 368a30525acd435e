"""From answers to verdicts. Pure.

Two measures, since two things have to be told apart. A hit against a *cold* run differs by rounding: the tail was
computed in other portions. A hit against an L1 hit of the *same depth* is the same computation over the same bytes, so
it differs by nothing, or by as much as two L1 hits of this engine do. Where the limits come from stands in
``docs/design/canary.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from serve.canary.cases import Case, Plan
from serve.canary.model import (
    EngineFacts,
    Failed,
    OutputToken,
    Probe,
    Report,
    Row,
    Shape,
    Stage,
    Tier,
    TierResult,
    Verdict,
    Written,
)

COLD_MAX: Final = 0.5
"""Largest difference of one token's logprob that rounding makes; beyond it the prefix is another one."""
COLD_MEAN: Final = 0.1
EQUAL_MAX: Final = 0.001
"""Between hits of one depth, on an engine that repeats itself exactly."""
NOISE_FACTOR: Final = 4.0
"""On one that does not: this many times the difference between two L1 hits."""
_TIE: Final = 1e-6

SWITCH_OFF: Final[Mapping[Tier, str]] = {
    Tier.L1: 'profile: flags."--disable-radix-cache" = true (SGLang: --disable-radix-cache)',
    Tier.L2: "governor up --profile P --without l2 (SGLang: leave out --enable-hierarchical-cache)",
    Tier.L3: "governor up --profile P --without l3 (SGLang: leave out --hicache-storage-backend; while it runs: DELETE "
    "/hicache/storage-backend)",
}
_WORST: Final = (Verdict.WRONG, Verdict.EMPTY, Verdict.SERVED, Verdict.SKIPPED)


class Answer(msgspec.Struct, frozen=True):
    """What came of asking a case at a stage."""

    stage: Stage
    shape: Shape
    outcome: Probe | Failed


class Difference(msgspec.Struct, frozen=True):
    """Of two answers' logprobs; infinite where one has no number."""

    largest: float
    mean: float


def difference(one: Probe, other: Probe) -> Difference:
    """Of the prompt's tails."""
    gaps = [_gap(a, b) for a, b in zip(one.scores, other.scores, strict=False)]
    if not gaps or len(one.scores) != len(other.scores):
        return Difference(math.inf, math.inf)
    return Difference(max(gaps), sum(gaps) / len(gaps))


def judge(
    facts: EngineFacts,
    plan: Plan,
    answers: Sequence[Answer],
    skipped: Mapping[Stage, str],
    written: Written = Written(),  # noqa: B008 - a frozen value
    notes: Sequence[str] = (),
) -> Report:
    """``skipped``: stages that were not asked, and why. ``answers`` has each asked case once a stage. ``written``: what
    went into the lower tiers meanwhile."""
    return _Judge(facts, plan, answers, skipped, written).report(notes)


class _Judge:
    def __init__(
        self,
        facts: EngineFacts,
        plan: Plan,
        answers: Sequence[Answer],
        skipped: Mapping[Stage, str],
        written: Written,
    ) -> None:
        self._facts = facts
        self._plan = plan
        self._skipped = skipped
        self._written = {Tier.L2: written.host_tokens, Tier.L3: written.storage_tokens}
        self._cases = {case.shape: case for case in plan.cases}
        self._answers = answers
        self._probes = {(a.stage, a.shape): a.outcome for a in answers if isinstance(a.outcome, Probe)}
        self._is_greedy = all(_is_greedy(token) for probe in self._probes.values() for token in probe.output)
        noises = [self._noise(shape) for shape in self._cases]
        self._noise_max = max(noises, default=0.0)
        self._equal_max = max(EQUAL_MAX, NOISE_FACTOR * self._noise_max)
        self._is_right_in_l1 = {
            shape
            for shape in self._cases
            if all(self._verdict(stage, shape) is Verdict.SERVED for stage in (Stage.L1, Stage.L1_AGAIN))
        }

    def report(self, notes: Sequence[str]) -> Report:
        rows = tuple(self._row(answer) for answer in self._answers)
        unproven = [f"{shape}: not asked, {why}" for shape, why in self._plan.left_out]
        return Report(
            facts=self._facts,
            seed=self._plan.seed,
            rows=rows,
            tiers=tuple(self._tier(tier, rows) for tier in Tier),
            problems=tuple(self._problems()),
            notes=(*notes, *unproven),
            noise=self._noise_max,
        )

    def _problems(self) -> list[str]:
        problems = []
        if not self._is_greedy:
            problems.append("the engine does not pick the most probable token at temperature 0: outputs not compared")
        claimed = [s for (stage, s), probe in self._probes.items() if stage is Stage.COLD and probe.cached_tokens]
        if claimed:
            named = ", ".join(claimed)
            problems.append(f"the engine says it reused parts of prompts that it had never seen ({named})")
        return problems

    def _noise(self, shape: Shape) -> float:
        """Between two equal hits in L1; a broken one is not noise."""
        first, again = (self._probes.get((stage, shape)) for stage in (Stage.L1, Stage.L1_AGAIN))
        if first is None or again is None or first.split != again.split:
            return 0.0
        apart = difference(first, again).largest
        return apart if apart <= COLD_MAX else 0.0

    def _verdict(self, stage: Stage, shape: Shape) -> Verdict | None:
        probe = self._probes.get((stage, shape))
        return None if probe is None else self._against_cold(stage, self._cases[shape], probe)[0]

    def _row(self, answer: Answer) -> Row:
        case, stage = self._cases[answer.shape], answer.stage
        row = Row(
            stage=stage,
            shape=case.shape,
            prompt_tokens=len(case.prompt),
            expected_tokens=0 if stage is Stage.COLD else case.depth_tokens,
            served=None,
            ttft_ms=None,
            max_dlogprob=None,
            mean_dlogprob=None,
            against=None,
            verdict=Verdict.WRONG,
        )
        probe = answer.outcome
        if isinstance(probe, Failed):
            return msgspec.structs.replace(row, reason=f"the engine failed: {probe.reason}")
        row = msgspec.structs.replace(row, served=probe.split, ttft_ms=probe.ttft_ms)
        if stage is Stage.COLD:
            verdict = Verdict.WRONG if _has_no_number(probe) else Verdict.SERVED
            reason = "its logprobs are no numbers" if verdict is Verdict.WRONG else ""
            return msgspec.structs.replace(row, verdict=verdict, reason=reason)
        verdict, reason = self._against_cold(stage, case, probe)
        against: Stage = Stage.COLD
        reference = self._same_depth(stage, case, probe)
        if reference is not None:
            against = Stage.L1
            if verdict is Verdict.SERVED:
                verdict, reason = self._against_hit(case, probe, reference, reason)
        compared = reference or self._probes.get((Stage.COLD, case.shape))
        apart = None if compared is None else difference(probe, compared)
        return msgspec.structs.replace(
            row,
            max_dlogprob=apart.largest if apart else None,
            mean_dlogprob=apart.mean if apart else None,
            against=against if apart else None,
            verdict=verdict,
            reason=reason,
        )

    def _same_depth(self, stage: Stage, case: Case, probe: Probe) -> Probe | None:
        """The L1 hit to compare with, if there is a right one."""
        reference = self._probes.get((Stage.L1, case.shape))
        if stage is Stage.L1 or reference is None or case.shape not in self._is_right_in_l1:
            return None
        return reference if reference.cached_tokens == probe.cached_tokens else None

    def _against_cold(self, stage: Stage, case: Case, probe: Probe) -> tuple[Verdict, str]:
        if _has_no_number(probe):
            return Verdict.WRONG, "its logprobs are no numbers (NaN)"
        cold = self._probes.get((Stage.COLD, case.shape))
        if cold is None:
            return Verdict.SKIPPED, "there is no cold answer to compare with"
        apart = difference(probe, cold)
        if apart.largest > COLD_MAX or apart.mean > COLD_MEAN:
            return (
                Verdict.WRONG,
                f"differs from a cold answer by up to {apart.largest:.3f}, by {apart.mean:.3f} on average",
            )
        if self._is_greedy and (token := _diverges(probe.output, cold.output, COLD_MAX)) is not None:
            return Verdict.WRONG, f"output token {token + 1} is another one than in a cold answer"
        return _served(stage, case, probe)

    def _against_hit(self, case: Case, probe: Probe, reference: Probe, reason: str) -> tuple[Verdict, str]:
        apart = difference(probe, reference)
        cold = self._probes[Stage.COLD, case.shape]
        if apart.largest > NOISE_FACTOR * self._noise_max and difference(probe, cold).largest == 0.0:
            return Verdict.EMPTY, "it claims a hit, but the answer is that of a cold run to the last digit"
        if apart.largest > self._equal_max:
            return Verdict.WRONG, f"differs by {apart.largest:.4f} from an L1 hit of the same depth"
        if self._is_greedy and (token := _diverges(probe.output, reference.output, self._equal_max)) is not None:
            return Verdict.WRONG, f"output token {token + 1} is another one than after an L1 hit"
        return Verdict.SERVED, reason

    def _tier(self, tier: Tier, rows: Sequence[Row]) -> TierResult:
        own = [row for row in rows if row.stage.tier is tier]
        verdict = next((v for v in _WORST if any(row.verdict is v for row in own)), Verdict.SKIPPED)
        if not own:
            why = next((why for stage, why in self._skipped.items() if stage.tier is tier), "not asked")
            return TierResult(tier=tier, verdict=verdict, reason=why)
        reasons = [f"{row.stage}, {row.shape}: {row.reason}" for row in own if row.verdict is verdict and row.reason]
        if verdict is Verdict.EMPTY and (tokens := self._written.get(tier)) is not None:
            reasons.append(f"{tokens:,} tokens were written to it meanwhile")
        bad = verdict in (Verdict.WRONG, Verdict.EMPTY)
        return TierResult(
            tier=tier,
            verdict=verdict,
            reason="; ".join(reasons),
            switch_off=SWITCH_OFF[tier] if bad else "",
        )


def _served(stage: Stage, case: Case, probe: Probe) -> tuple[Verdict, str]:
    """By the engine's own count: what the stage's tier gave."""
    tier = stage.tier
    if probe.cached_tokens == 0 or tier is None:
        return Verdict.EMPTY, f"nothing of {case.depth_tokens:,} tokens was reused"
    if probe.split is None:
        return Verdict.SKIPPED, "the engine does not say which tier served"
    if probe.split.of(tier) == 0:
        if tier is Tier.L1 or (tier is Tier.L2 and probe.split.storage > 0):
            return Verdict.EMPTY, f"{probe.split} served instead"
        return Verdict.SKIPPED, f"the prompt was still in {probe.split}"
    if probe.cached_tokens < case.depth_tokens:
        return Verdict.SERVED, f"only {probe.cached_tokens:,} of {case.depth_tokens:,} tokens were reused"
    return Verdict.SERVED, ""


def _has_no_number(probe: Probe) -> bool:
    chosen = [token.chosen.logprob for token in probe.output]
    return any(score is None or not math.isfinite(score) for score in (*probe.scores, *chosen))


def _gap(one: float | None, other: float | None) -> float:
    if one is None or other is None or not math.isfinite(one) or not math.isfinite(other):
        return math.inf
    return abs(one - other)


def _is_greedy(token: OutputToken) -> bool:
    chosen = token.chosen.logprob
    best = token.best[0].logprob if token.best else None
    return chosen is None or best is None or chosen >= best - _TIE


def _diverges(one: Sequence[OutputToken], other: Sequence[OutputToken], tolerance: float) -> int | None:
    """Where two greedy outputs part other than by a tie that rounding decides; ``None`` if they do not.

    If each logprob is off by at most ``tolerance``, the other's token is at most twice that behind the best one.
    """
    for at, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours.chosen.token == theirs.chosen.token:
            continue
        behind = [_behind(ours, theirs.chosen.token), _behind(theirs, ours.chosen.token)]
        return None if max(behind) <= 2 * tolerance else at
    return None


def _behind(token: OutputToken, other: int) -> float:
    """How much less probable ``other`` is than the chosen one; infinite if it is not among the best."""
    logprob = next((choice.logprob for choice in token.best if choice.token == other), None)
    return _gap(token.chosen.logprob, logprob)

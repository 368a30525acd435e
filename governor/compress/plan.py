"""A shorter form of a history, or the reason why there is none that helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from governor.compress.draft import Done, Draft, Left, Raw, SizeOf
from governor.compress.limits import Limits
from governor.compress.messages import read_message
from governor.compress.rounds import Hold
from governor.compress.stages import EDITS
from governor.compress.stages.drop import Summary, oldest_removed, summarised_removed
from governor.compress.validate import new_rules_broken
from governor.policy.model import CompressionPolicy, CompressionStage

_LONGEST = "[the summary that is still to be written]"
"""Stands for it in a plan that asks what it would free."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A shorter history by the sizes given. Whether the engine sees it so is for ``verify`` to say."""

    messages: tuple[Raw, ...]
    """Those that were not touched are the very same values."""
    origins: tuple[int | None, ...]
    """For each message the index it had; ``None`` for the one that stands for what was left out."""
    before_tokens: int
    after_tokens: int
    done: tuple[Done, ...]
    left: tuple[Left, ...]
    """For the archive. Handles do not repeat."""

    @property
    def freed_by_stage(self) -> Mapping[CompressionStage, int]:
        """Tokens, in the order in which the stages came."""
        return freed_by_stage(self.done)

    @property
    def covered(self) -> int:
        """How many of the client's messages, from the first, the plan has replaced or left out something of; all after
        them are as they were."""
        present = {origin for origin in self.origins if origin is not None}
        gone = max((index for index in range(max(present, default=0)) if index not in present), default=-1)
        return max(gone, *(done.index for done in self.done)) + 1


class NoPlanReason(StrEnum):
    BELOW_TRIGGER = "below_trigger"
    """The prompt is not long enough to be touched."""
    ABOVE_TARGET = "above_target"
    """All that the policy allows would leave it above its target."""
    GAIN_TOO_SMALL = "gain_too_small"
    """All that the policy allows would free less than the least gain."""
    INVALID = "invalid"
    """The shorter history breaks a rule of the chat format that the client's own did not."""


class NoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no plan, with the numbers."""

    reason: NoPlanReason
    before_tokens: int
    best_tokens: int
    """The least that could be reached."""
    target_tokens: int
    gain_tokens: int
    """Least that must be freed."""
    held_tokens: int
    """What may not be touched: fixed parts, and messages held verbatim or open."""
    done: tuple[Done, ...] = ()
    """What the best try had done."""
    rules: tuple[str, ...] = ()
    """Rules of the chat format that it would break."""

    def __str__(self) -> str:
        match self.reason:
            case NoPlanReason.BELOW_TRIGGER:
                return f"{self.before_tokens:,} tokens are below the trigger"
            case NoPlanReason.INVALID:
                return f"the shorter history would be refused: {', '.join(self.rules)}"
            case NoPlanReason.ABOVE_TARGET:
                return (
                    f"{self.before_tokens:,} tokens can be brought down to {self.best_tokens:,}, above the target of "
                    f"{self.target_tokens:,}; {self.held_tokens:,} of them may not be touched"
                )
            case NoPlanReason.GAIN_TOO_SMALL:
                return (
                    f"{self.before_tokens:,} tokens can be brought down to {self.best_tokens:,}, which frees fewer "
                    f"than the {self.gain_tokens:,} that are worth it; {self.held_tokens:,} of them may not be touched"
                )


def plan(
    messages: Sequence[Raw],
    sizes: Sequence[int],
    *,
    size_of: SizeOf,
    fixed_tokens: int,
    policy: CompressionPolicy,
    limits: Limits,
    summary: Summary | None = None,
) -> Plan | NoPlan:
    """Apply the policy's stages in their order until the target is met and the least gain freed.

    ``sizes`` are the tokens of each message, ``fixed_tokens`` those of all else in the prompt (tools, framing);
    ``size_of`` counts a message that is new; without a ``summary`` that stage does nothing. Pure; the same arguments
    give the same plan. Raises nothing: messages that cannot be read stay as they are.
    """
    draft = Draft(messages, sizes, size_of=size_of, fixed_tokens=fixed_tokens, policy=policy, limits=limits)
    if draft.before_tokens < limits.trigger_tokens or draft.before_tokens <= limits.target_tokens:
        return _no_plan(draft, NoPlanReason.BELOW_TRIGGER)
    for reach, stages in _passes(policy):
        draft.reach_to(reach)
        for stage in stages:
            if draft.excess_tokens > 0:
                _run(stage, draft, summary)
    if draft.excess_tokens > 0:
        is_above = draft.tokens > limits.target_tokens
        return _no_plan(draft, NoPlanReason.ABOVE_TARGET if is_above else NoPlanReason.GAIN_TOO_SMALL)
    shorter, origins = draft.result()
    rules = new_rules_broken(map(read_message, messages), draft.present())
    if rules:
        return _no_plan(draft, NoPlanReason.INVALID, rules)
    return Plan(
        messages=shorter,
        origins=origins,
        before_tokens=draft.before_tokens,
        after_tokens=draft.tokens,
        done=tuple(draft.done),
        left=tuple(draft.left.values()),
    )


def wants_summary(
    messages: Sequence[Raw],
    sizes: Sequence[int],
    *,
    size_of: SizeOf,
    fixed_tokens: int,
    policy: CompressionPolicy,
    limits: Limits,
    covered: int | None = None,
) -> int | None:
    """Tokens that a summary of the first ``covered`` messages (``None``: of all) would free, were it as long as it may
    be; ``None`` where no summary is to be written.

    It is where the stages before it miss the target, a plan with it would be accepted, and it would stand for at least
    twice its own length. The arguments are those of :func:`plan`. Costs as much as a plan.
    """
    if CompressionStage.SUMMARY not in policy.stages:
        return None
    made = plan(
        messages,
        sizes,
        size_of=_with_longest(size_of, policy),
        fixed_tokens=fixed_tokens,
        policy=policy,
        limits=limits,
        summary=Summary(_LONGEST, len(messages) if covered is None else covered),
    )
    freed = 0 if isinstance(made, NoPlan) else made.freed_by_stage.get(CompressionStage.SUMMARY, 0)
    return freed if freed >= policy.summary_tokens else None


def what_each_would_free(
    messages: Sequence[Raw], sizes: Sequence[int], *, size_of: SizeOf, policy: CompressionPolicy, limits: Limits
) -> Mapping[CompressionStage, int]:
    """Tokens that each stage would free after those before it, were there no target and the summary as long as it may
    be. For reports."""
    no_target = msgspec.structs.replace(limits, target_tokens=0)
    sized = _with_longest(size_of, policy)
    draft = Draft(messages, sizes, size_of=sized, fixed_tokens=0, policy=policy, limits=no_target)
    for stage in policy.stages:
        _run(stage, draft, Summary(_LONGEST, len(messages)))
    return dict.fromkeys(policy.stages, 0) | freed_by_stage(draft.done)


def freed_by_stage(done: Sequence[Done]) -> dict[CompressionStage, int]:
    """Tokens freed, by the stages that freed any."""
    freed: dict[CompressionStage, int] = {}
    for each in done:
        freed[each.stage] = freed.get(each.stage, 0) + each.freed_tokens
    return freed


def _passes(policy: CompressionPolicy) -> Iterator[tuple[Hold, Sequence[CompressionStage]]]:
    """All stages on what is old, then on what is recent, and only then results that the model has not seen are cut
    further than to their room."""
    yield Hold.FREE, policy.stages
    yield Hold.RECENT, policy.stages
    yield Hold.OPEN, [stage for stage in policy.stages if stage is CompressionStage.OVERSIZED]


def _with_longest(size_of: SizeOf, policy: CompressionPolicy) -> SizeOf:
    return lambda raw: size_of(raw) + (policy.summary_tokens if _LONGEST.encode() in raw else 0)


def _run(stage: CompressionStage, draft: Draft, summary: Summary | None) -> None:
    if stage in {CompressionStage.DROP, CompressionStage.SUMMARY}:
        removal = None
        if stage is CompressionStage.DROP:
            removal = oldest_removed(draft)
        elif summary is not None:
            removal = summarised_removed(draft, summary)
        if removal is not None:
            draft.remove(removal)
        return
    for edit in EDITS[stage](draft):
        draft.apply(edit)
        if draft.excess_tokens <= 0:
            return


def _no_plan(draft: Draft, reason: NoPlanReason, rules: tuple[str, ...] = ()) -> NoPlan:
    fixed = draft.tokens - sum(draft.sizes)
    if draft.marker is not None:
        fixed -= draft.size_of(draft.marker[1])
    held = [size for size, hold in zip(draft.sizes, draft.holds, strict=True) if hold >= Hold.OPEN]
    return NoPlan(
        reason=reason,
        before_tokens=draft.before_tokens,
        best_tokens=draft.tokens,
        target_tokens=draft.limits.target_tokens,
        gain_tokens=draft.limits.gain_tokens,
        held_tokens=fixed + sum(held),
        done=tuple(draft.done),
        rules=rules,
    )

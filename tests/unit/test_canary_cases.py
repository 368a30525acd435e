"""What the canary asks: exact lengths, nothing shared between cases, the same for the same seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from serve.canary.cases import NEW_TOKENS, NoRoom, Plan, make_plan, quotes, tokens
from serve.canary.model import Checkpoints, EngineFacts, Shape
from tests.canary_engine import facts_of

ALL = tuple(Checkpoints)
PAGED = [checkpoints for checkpoints in ALL if checkpoints is not Checkpoints.NO_BUFFER]


def plan_for(checkpoints: Checkpoints, **changes: object) -> Plan:
    return make_plan(facts_of(checkpoints, **changes), "s")


@pytest.mark.parametrize("checkpoints", ALL)
def test_asking_a_case_leaves_no_deeper_checkpoint(checkpoints: Checkpoints) -> None:
    for case in plan_for(checkpoints).cases:
        beyond = len(case.prompt) + NEW_TOKENS - case.depth_tokens
        # An aligned prompt has one page more, whose checkpoint is at its very end and so is never matched.
        limit = 128 if case.shape is Shape.ALIGNED else 64
        assert 0 < beyond < limit
        assert case.depth_tokens % 64 == 0
        assert case.depth_tokens >= 320


@pytest.mark.parametrize("checkpoints", ALL)
def test_cases_share_no_first_page(checkpoints: Checkpoints) -> None:
    plan = plan_for(checkpoints)
    firsts = [case.prompt[:8] for case in plan.cases] + [plan.floods[0].prompt("s", number)[:8] for number in range(9)]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("checkpoints", PAGED)
def test_shapes_are_what_they_are_called(checkpoints: Checkpoints) -> None:
    cases = {case.shape: case for case in plan_for(checkpoints).cases}
    repeat, continuation = cases[Shape.REPEAT], cases[Shape.CONTINUATION]
    assert repeat.stored == (repeat.prompt,)
    (stored,) = continuation.stored
    assert continuation.depth_tokens < len(stored) < len(continuation.prompt)
    assert continuation.prompt[: len(stored)] == stored
    branch = cases[Shape.BRANCH]
    forks = [*branch.stored, branch.prompt]
    assert {fork[: branch.depth_tokens] for fork in forks} == {branch.prompt[: branch.depth_tokens]}
    assert len({fork[branch.depth_tokens] for fork in forks}) == 3
    assert len(cases[Shape.ALIGNED].prompt) % 64 == 0


def test_no_buffer_is_asked_only_what_it_can_reuse() -> None:
    plan = plan_for(Checkpoints.NO_BUFFER)
    (case,) = plan.cases
    assert case.shape is Shape.CONTINUATION
    assert len(case.stored[0]) == case.depth_tokens
    assert {shape for shape, _ in plan.left_out} == set(Shape) - {Shape.CONTINUATION}


def test_depth_follows_pages_and_capacity() -> None:
    def depth(facts: EngineFacts) -> int:
        return make_plan(facts, "s").cases[0].depth_tokens

    attention = facts_of(Checkpoints.ATTENTION)
    assert depth(attention) == 512
    assert depth(facts_of(Checkpoints.ATTENTION, device_tokens=4096, window_tokens=4096)) == 320
    assert depth(facts_of(Checkpoints.ATTENTION, device_tokens=231_914, window_tokens=196_608)) == 2048
    assert depth(facts_of(Checkpoints.EXTRA_BUFFER, page_tokens=128)) % 128 == 0


@pytest.mark.parametrize("changes", [{"device_tokens": 1024}, {"window_tokens": 512}])
def test_a_cache_without_room_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(NoRoom, match="do not fit"):
        plan_for(Checkpoints.ATTENTION, **changes)


def test_floods_fill_l1_and_states_go_first() -> None:
    states, kv = plan_for(Checkpoints.EXTRA_BUFFER).floods
    assert states.prompts == 32
    assert states.prompt_tokens > 64
    for flood in (kv, *plan_for(Checkpoints.ATTENTION).floods):
        assert flood.prompts * flood.prompt_tokens >= 8192
    assert make_plan(facts_of(Checkpoints.EXTRA_BUFFER), "s", quick=True).floods == (states,)


def test_one_seed_one_plan() -> None:
    facts = facts_of(Checkpoints.EXTRA_BUFFER)
    assert make_plan(facts, "one") == make_plan(facts, "one")
    ours, theirs = (make_plan(facts, seed).cases[0].prompt for seed in ("one", "two"))
    assert ours[:4] != theirs[:4]


def test_a_tail_quotes_all_parts_of_the_prefix() -> None:
    prefix = tuple(range(512))
    tail = quotes(prefix, 48)
    assert len(tail) == 48
    starts = tail[::8]
    assert starts[0] == 0
    assert all(later - earlier == starts[1] for earlier, later in pairwise(starts))
    assert all(
        tail[at : at + 8] == prefix[start : start + 8] for at, start in zip(range(0, 48, 8), starts, strict=True)
    )


def test_tokens_are_in_every_vocabulary() -> None:
    assert all(1000 <= token < 16_000 for token in tokens(5000, "s", "x"))

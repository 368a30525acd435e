"""Reasoning is stopped soon after its budget, and counted seldom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.output.thinking import ThinkingBudget

MOST_COUNTS = 12


def thought_until_used_up(budget: ThinkingBudget, sizes: list[int], step: int) -> tuple[int, int]:
    """Tokens written and counts made until the budget says that it is used up. ``sizes``: characters a token, over and
    over; ``step``: tokens shown at a time."""
    written = counts = 0
    since_count = 0
    while not budget.is_used_up:
        shown = sum(sizes[(written + each) % len(sizes)] for each in range(step))
        written, since_count = written + step, since_count + step
        if budget.on_text("x" * shown):
            counts += 1
            budget.on_counted(budget.take_uncounted(), since_count)
            since_count = 0
    return written, counts


@given(
    tokens=st.integers(1, 20_000),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    step=st.integers(1, 5),
)
def test_it_is_used_up_when_so_much_is_written(tokens: int, sizes: list[int], step: int) -> None:
    written, counts = thought_until_used_up(ThinkingBudget(tokens), sizes, step)
    # A rate that is learned from some tokens may not be that of the next ones, however regular.
    assert tokens <= written <= tokens + max(8, tokens // 32) * 9 + step
    assert counts <= MOST_COUNTS + max(sizes) * 8


@pytest.mark.parametrize("chars_per_token", [1, 2, 4, 7])
@pytest.mark.parametrize("tokens", [16, 1000, 32_000])
def test_of_even_text_it_is_counted_a_few_times_and_to_the_token(tokens: int, chars_per_token: int) -> None:
    written, counts = thought_until_used_up(ThinkingBudget(tokens), [chars_per_token], 1)
    assert tokens <= written <= tokens + 1
    assert counts <= MOST_COUNTS


def test_a_budget_of_nought_is_used_up_by_the_first_text() -> None:
    budget = ThinkingBudget(0)
    assert budget.on_text("a")
    assert budget.is_used_up


@given(tokens=st.integers(1, 5000), kept=st.lists(st.integers(0, 500), max_size=8), said=st.integers(0, 3000))
def test_the_tokens_of_a_piece_that_is_over_stand_in_place_of_what_was_counted(
    tokens: int, kept: list[int], said: int
) -> None:
    budget = ThinkingBudget(tokens)
    for each in kept:
        if budget.on_text("y" * said):
            budget.on_counted(budget.take_uncounted(), said // 3)
        budget.on_kept(each)
        assert budget.take_uncounted() == ""
    assert budget.thought_tokens == sum(kept)
    assert budget.is_used_up == (sum(kept) >= tokens)

"""Medians, ranks and intervals: against figures worked out by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from governor.measure.stats import least_p, quantile, rank_sum_p, ratio_interval


def test_quantiles_lie_between_the_nearest_values() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2, 3, 4, 5], 0.25) == 2
    assert quantile([7], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 0.1),  # 2 of 20 orders are as extreme
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        ([1, 4], [2, 3], 1.0),
    ],
)
def test_the_rank_test_by_hand(ours: list[float], theirs: list[float], p: float) -> None:
    assert rank_sum_p(ours, theirs) == pytest.approx(p)
    assert rank_sum_p(theirs, ours) == pytest.approx(p)


def test_the_rank_test_is_exact_for_all_orders_of_seven() -> None:
    """Each order is equally likely by chance, so a probability of p or less comes up in at most p of them."""
    ranks = range(7)
    all_p = [
        rank_sum_p(list(chosen), [rank for rank in ranks if rank not in chosen]) for chosen in combinations(ranks, 3)
    ]
    for limit in set(all_p):
        assert sum(p <= limit for p in all_p) / len(all_p) <= limit + 1e-9
    assert min(all_p) == pytest.approx(least_p(3, 4))


def test_ties_are_no_difference() -> None:
    assert rank_sum_p([5, 5, 5, 5], [5, 5, 5, 5]) == 1.0


def test_the_interval_of_a_ratio_holds_it_and_is_the_same_each_time() -> None:
    ours, theirs = [10.0, 11, 9, 10.5, 9.5], [20.0, 21, 19, 20.5, 19.5]
    low, high = ratio_interval(ours, theirs)
    assert low < 2.0 < high
    assert low > 1.7
    assert high < 2.35
    assert ratio_interval(ours, theirs) == (low, high)

"""The KV ledger, rule by rule."""

from __future__ import annotations

import pytest

from governor.budget.claim import Capacity, Claim, Segment, Sight
from governor.budget.ledger import GRACE_S, Ledger
from governor.types import AgentName, TurnId


def claim(name: str, prompt: int, output: int = 0, *, shared: tuple[str, int] | None = None, **more: int) -> Claim:
    segments = [] if shared is None else [Segment(shared[0].encode(), shared[1])]
    segments.append(Segment(name.encode(), prompt))
    return Claim(
        turn_id=TurnId(name), agent=AgentName("a-" + name[0]), segments=tuple(segments), output_tokens=output, **more
    )


def ledger(tokens: int | None = 100_000, slots: int | None = None) -> Ledger:
    return Ledger(Capacity(tokens=tokens, slots=slots))


def test_the_sum_of_leases_never_exceeds_the_capacity() -> None:
    books = ledger()
    for name in "abc":
        books.book(claim(name, 30_000, 3_000), 0.0, 60.0)
    fourth = claim("d", 30_000, 8_000)
    assert books.shortage(fourth).tokens == 3 * 33_000 + 38_000 - 100_000
    with pytest.raises(ValueError, match="does not fit"):
        books.book(fourth, 0.0, 60.0)
    books.release(TurnId("a"), 1.0, confirmed=True)
    books.release(TurnId("b"), 1.0, confirmed=True)
    books.book(fourth, 1.0, 60.0)
    books.check_integrity()
    assert books.held_tokens == 33_000 + 38_000


def test_a_turn_larger_than_the_pool_is_never_possible() -> None:
    assert ledger().shortage(claim("a", 120_000, 1)).never
    assert not ledger().shortage(claim("a", 99_999, 1)).never
    assert ledger(slots=4).shortage(claim("a", 1, slots=5)).never


def test_a_shared_prefix_counts_once_and_stays_as_long_as_one_holds_it() -> None:
    books = ledger()
    books.book(claim("a", 10, shared=("system", 40_000)), 0.0, 60.0)
    books.book(claim("b", 20, shared=("system", 40_000)), 0.0, 60.0)
    assert books.held_tokens == 40_030
    assert books.agent_tokens(AgentName("a-a")) == 40_010
    books.release(TurnId("a"), 1.0, confirmed=True)
    assert books.held_tokens == 40_020
    books.release(TurnId("b"), 1.0, confirmed=True)
    assert books.held_tokens == 0
    books.check_integrity()


def test_a_prefix_whose_size_was_told_differently_is_booked_for_both() -> None:
    """Its prompt was counted before, and reported by the engine since."""
    books = ledger()
    books.book(claim("a", 10, shared=("system", 40_000)), 0.0, 60.0)
    books.book(claim("b", 20, shared=("system", 45_000)), 0.0, 60.0)
    assert books.shortage(claim("c", 30_000), without=(TurnId("b"),)).tokens == 0
    books.release(TurnId("a"), 1.0, confirmed=True)
    books.check_integrity()
    assert books.held_tokens == 45_020


def test_slots_are_a_second_pool_and_can_be_the_tighter_one() -> None:
    books = ledger(tokens=1_000_000, slots=8)
    for name in "ab":
        books.book(claim(name, 100, slots=3), 0.0, 60.0)
    short = books.shortage(claim("c", 100, slots=3))
    assert (short.tokens, short.slots, short.never) == (0, 1, False)


def test_choices_write_each_their_own_output() -> None:
    assert claim("a", 1_000, 500, choices=4).tokens == 3_000


def test_an_aborted_turn_is_held_until_the_engine_confirms() -> None:
    books = ledger()
    books.book(claim("a", 1_000), 0.0, 60.0)
    books.book(claim("b", 1_000), 0.0, 60.0)
    books.release(TurnId("a"), 10.0, confirmed=False)
    books.reconcile(10.5, Sight(asked_at=9.0, running=1))  # asked before it left
    assert books.held_tokens == 2_000
    books.reconcile(11.0, Sight(asked_at=10.5, running=2))  # still there
    assert books.held_tokens == 2_000
    assert books.reconcile(12.0, Sight(asked_at=11.5, running=1)) == []
    assert books.held_tokens == 1_000


def test_a_lost_abort_is_freed_after_the_grace_and_said() -> None:
    books = ledger()
    books.book(claim("a", 1_000), 0.0, 60.0)
    books.release(TurnId("a"), 10.0, confirmed=False)
    assert books.next_expiry() == 10.0 + GRACE_S
    assert books.expire(10.0 + GRACE_S - 0.1) == []
    (freed,) = books.expire(10.0 + GRACE_S)
    assert freed.turn_id == "a"
    assert "not confirmed" in freed.why
    assert books.held_tokens == 0


def test_a_second_release_changes_nothing() -> None:
    books = ledger()
    books.book(claim("a", 1_000), 0.0, 60.0)
    for _ in range(2):
        books.release(TurnId("a"), 1.0, confirmed=True)
    books.release(TurnId("nobody"), 1.0, confirmed=True)
    books.check_integrity()
    assert books.held_tokens == 0


def test_an_expired_lease_is_taken_back_only_if_the_engine_runs_fewer() -> None:
    books = ledger()
    books.book(claim("a", 1_000), 0.0, 5.0)
    assert books.reconcile(9.0, Sight(asked_at=8.0, running=1)) == []
    (freed,) = books.reconcile(9.5, Sight(asked_at=9.0, running=0))
    assert "expired" in freed.why


def test_what_no_lease_explains_is_foreign_and_leaves_less_room() -> None:
    books = ledger()
    books.book(claim("a", 1_000), 0.0, 60.0)
    books.reconcile(0.5, Sight(asked_at=0.5, running=2, used_tokens=71_000))
    assert books.foreign_tokens == 0  # it may tell of turns that have just ended
    books.reconcile(1.0, Sight(asked_at=1.0, running=2, used_tokens=61_000))
    assert books.foreign_tokens == 60_000
    assert books.shortage(claim("b", 40_000)).tokens == 1_000
    books.reconcile(2.0, Sight(asked_at=2.0, running=1, used_tokens=900))
    assert books.foreign_tokens == 0


def test_growing_is_bounded_by_the_capacity_like_a_booking() -> None:
    books = ledger()
    books.book(claim("a", 90_000, 4_000), 0.0, 60.0)
    assert books.grow(TurnId("a"), 10_000)
    assert not books.grow(TurnId("a"), 10_001)
    assert books.held_tokens == 100_000
    assert books.grow(TurnId("a"), 2_000)
    assert books.held_tokens == 92_000
    assert not books.grow(TurnId("b"), 1)
    books.check_integrity()


def test_a_running_turn_may_need_more_than_it_asked_for() -> None:
    books = ledger()
    books.book(claim("a", 30_000, 4_000, shared=("system", 20_000)), 0.0, 60.0)
    books.book(claim("b", 10_000, shared=("system", 20_000)), 0.0, 60.0)
    assert books.change(claim("a", 66_000, 4_000, shared=("system", 20_000)))
    assert books.held_tokens == 100_000
    assert not books.change(claim("a", 66_001, 4_000, shared=("system", 20_000)))
    assert books.change(claim("a", 50_000, 1_000)), "less always fits, and what it shared is the other's alone"
    assert books.held_tokens == 51_000 + 30_000
    assert not books.change(claim("c", 1))
    books.release(TurnId("a"), 1.0, confirmed=False)
    assert not books.change(claim("a", 1)), "it is on its way out"
    books.check_integrity()


def test_thinking_leases_away_counts_shared_prefixes_right() -> None:
    books = ledger(tokens=50_000)
    books.book(claim("a", 5_000, shared=("system", 40_000)), 0.0, 60.0)
    books.book(claim("b", 5_000, shared=("system", 40_000)), 0.0, 60.0)
    newcomer = claim("c", 20_000)
    assert books.shortage(newcomer, without=(TurnId("a"),)).tokens == 15_000
    assert not books.shortage(newcomer, without=(TurnId("a"), TurnId("b")))
    member = claim("d", 5_000, shared=("system", 40_000))
    assert not books.shortage(member, without=(TurnId("a"),))
    assert not books.shortage(member, without=(TurnId("a"), TurnId("b")))


def test_an_engine_that_tells_nothing_bounds_nothing() -> None:
    books = ledger(tokens=None)
    assert not books.shortage(claim("a", 10**9))
    assert books.free_tokens is None


def test_a_new_engine_holds_nothing() -> None:
    books = ledger()
    books.book(claim("a", 1_000, shared=("system", 10)), 0.0, 60.0)
    books.release(TurnId("a"), 1.0, confirmed=False)
    books.clear()
    books.check_integrity()
    assert books.held_tokens == 0


def test_what_is_foreign_does_not_keep_a_turn_out_that_would_run_alone() -> None:
    books = ledger()
    for at in (1.0, 2.0):
        books.reconcile(at, Sight(asked_at=at, running=1, used_tokens=90_000))
    assert books.foreign_tokens == 90_000
    books.book(claim("a", 50_000), 3.0, 60.0)
    assert books.shortage(claim("b", 1_000))

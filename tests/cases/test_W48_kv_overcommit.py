"""W48 kv-overcommit: every turn books prompt and capped output, times its choices, in each of the engine's pools."""

from __future__ import annotations

import pytest

from governor.budget.claim import Capacity, Claim, Segment
from governor.budget.ledger import Ledger
from governor.errors import ContextOverflow
from governor.schedule.effects import Refusal
from governor.types import AgentName, TurnId
from tests.scenario import load_case
from tests.unit.test_schedule_kv import Table

(VARIANT,) = load_case("W48").variants
POOL = VARIANT.policy["pool_tokens"]
FOUR, TOO_LARGE, CHOICES = VARIANT.rows


def _claim(name: str, row: dict[str, int], slots: int = 0) -> Claim:
    return Claim(
        turn_id=TurnId(name),
        agent=AgentName("a"),
        segments=(Segment(name.encode(), row["prompt"]),),
        output_tokens=row["max_tokens"],
        choices=row["n"],
        slots=slots,
    )


def test_W48_as_many_run_as_fit_and_no_more() -> None:
    table = Table(tokens=POOL, pauses=False)
    for number in range(FOUR["copies"]):
        table.arrive(f"t{number}", FOUR["prompt"], FOUR["max_tokens"])
        assert table.scheduler.ledger.held_tokens <= POOL
    assert len(table.effects.granted) == FOUR["max_parallel"]
    for number in range(FOUR["copies"]):  # each that ends lets the next one in
        table.end(f"t{number}")
        assert table.scheduler.ledger.held_tokens <= POOL
    assert len(table.effects.granted) == FOUR["copies"]


def test_W48_one_larger_than_the_pool_is_refused_at_once() -> None:
    table = Table(tokens=POOL)
    table.arrive("large", TOO_LARGE["prompt"], TOO_LARGE["max_tokens"])
    refusal, reason, _ = table.effects.rejected[TurnId("large")]
    assert refusal is Refusal.TOO_LARGE
    assert f"{POOL:,} KV tokens" in reason
    assert ContextOverflow.status == 400


def test_W48_each_choice_writes_its_own_output() -> None:
    books = Ledger(Capacity(tokens=POOL))
    books.book(_claim("n4", CHOICES), 0.0, 60.0)
    assert books.held_tokens >= CHOICES["reserve_at_least"]


def test_W48_the_tighter_pool_decides() -> None:
    books = Ledger(Capacity(tokens=10 * POOL, slots=10))
    for name in ("a", "b", "c"):
        books.book(_claim(name, FOUR, slots=3), 0.0, 60.0)
    assert books.shortage(_claim("d", FOUR, slots=3)).slots == 2
    with pytest.raises(ValueError, match="does not fit"):
        books.book(_claim("d", FOUR, slots=3), 0.0, 60.0)

"""W45 starvation: hot and better traffic overtakes, nobody waits beyond a documented time, no room lies idle."""

from __future__ import annotations

import pytest

from governor.policy.model import SharePolicy
from governor.types import AgentClass
from tests.unit.test_schedule_kv import Table

BUDGET_S = 60.0
SHARE = SharePolicy(waiting_s=BUDGET_S)
TURN_S = 5.0


class Traffic:
    """An engine whose turns take :data:`TURN_S`, and agents of one class that keep ``waiting`` turns before it."""

    def __init__(self, agent_class: AgentClass, prompt: int, *, waiting: int, resident: int = 0) -> None:
        self.table = Table(tokens=100_000, pauses=False)
        self._hot = {"agent_class": agent_class, "resident": resident}
        self._prompt = prompt
        self._waiting = waiting
        self._number = 0
        self._ends: dict[str, float] = {}
        self._seen: set[str] = set()
        self.used_s = 0.0
        """Token-seconds of L1 that turns held."""

    def run(self, until_granted: str) -> float:
        """Until that turn comes to run; when that is."""
        table = self.table
        while until_granted not in table.effects.granted:
            assert table.now < 5 * BUDGET_S, "starved"
            for name in [name for name, end in self._ends.items() if table.now >= end]:
                del self._ends[name]
                table.end(name)
            while table.scheduler.waiting < self._waiting:
                self._number += 1
                table.arrive(f"hot{self._number}", self._prompt, agent=f"a{self._number % 3}", **self._hot)  # type: ignore[arg-type]
            for name in table.effects.granted:
                if name not in self._seen:
                    self._seen.add(name)
                    self._ends[name] = table.now + TURN_S
            self.used_s += table.scheduler.ledger.held_tokens
            table.at(table.now + 1.0)
        return table.now


@pytest.mark.parametrize("hot", [AgentClass.INTERACTIVE, AgentClass.NORMAL, AgentClass.BACKGROUND])
def test_W45_a_cold_background_turn_runs_within_its_budget(hot: AgentClass) -> None:
    traffic = Traffic(hot, 40_000, waiting=4, resident=40_000)
    traffic.table.arrive("first", 90_000, agent_class=hot)
    traffic.table.arrive("cold", 30_000, agent_class=AgentClass.BACKGROUND, share=SHARE)
    at = traffic.run("cold")
    assert at <= BUDGET_S + 2 * TURN_S
    assert traffic.used_s / at > 0.6 * 100_000, "the others have run meanwhile"


def test_W45_a_large_turn_is_not_passed_by_small_ones_for_ever() -> None:
    traffic = Traffic(AgentClass.NORMAL, 5_000, waiting=3)
    traffic.table.arrive("first", 40_000)
    traffic.table.arrive("large", 90_000, share=SHARE)
    at = traffic.run("large")
    assert BUDGET_S <= at <= BUDGET_S + 2 * TURN_S
    assert traffic.used_s / at > 0.6 * 100_000, "until its budget is over small ones use the room"

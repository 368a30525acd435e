"""What one decision of the turn scheduler costs with 64 agents and 1,000 waiting conversations:
``python -m bench.deciding``. The goal is less than a millisecond an event."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from governor.budget.claim import Capacity, Claim, Segment, Sight
from governor.policy.model import LimitPolicy
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    EngineChanged,
    EngineMode,
    EngineSeen,
    SchedulerEvent,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnStarted,
    TurnWrote,
)
from governor.schedule.turns import TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind

L1_TOKENS = 2_000_000
GOAL_MS = 1.0


class _Running:
    """Effects that remember who runs."""

    def __init__(self) -> None:
        self.turns: dict[TurnId, None] = {}

    def grant(self, turn_id: TurnId, why: str) -> None:
        self.turns[turn_id] = None

    def queue(self, turn_id: TurnId, reason: str) -> None:
        self.turns.pop(turn_id, None)

    def pause(self, turn_id: TurnId, reason: str) -> None:
        pass

    def reject(self, turn_id: TurnId, refusal: Refusal, reason: str, retry_after_s: int) -> None:
        raise AssertionError(reason)

    def take_back(self, freed: object) -> None:
        raise AssertionError(freed)


class _Timed:
    """A scheduler whose every event is timed, by its kind."""

    def __init__(self) -> None:
        self.effects = _Running()
        self.scheduler = TurnScheduler(self.effects)
        self.now = 0.0
        self.took: dict[str, list[float]] = {}
        self.post(EngineChanged(EngineMode.READY, capacity=Capacity(tokens=L1_TOKENS), pauses=True))

    def post(self, event: SchedulerEvent) -> None:
        began = time.perf_counter()
        self.scheduler.on_event(self.now, event)
        self.scheduler.next_deadline(self.now)
        self.took.setdefault(type(event).__name__, []).append(1000 * (time.perf_counter() - began))

    def running(self) -> Iterator[TurnId]:
        return iter(tuple(self.effects.turns))


def _arrival(rng: random.Random, number: int, agents: int) -> TurnArrived:
    turn_id, agent = TurnId(f"t{number}"), AgentName(f"a{number % agents}")
    segments = (
        Segment(b"system %d" % (number % agents), 8_000),
        Segment(turn_id.encode(), rng.randint(5_000, 120_000)),
    )
    return TurnArrived(
        turn_id=turn_id,
        agent=agent,
        agent_class=rng.choice(list(AgentClass)),
        kind=TurnKind.TOOL_STEP,
        limits=LimitPolicy(queue=1_000_000, hold_s=80_000.0),
        claim=Claim(turn_id=turn_id, agent=agent, segments=segments, output_tokens=4_096),
        session=f"s{number}",
    )


def measured(agents: int, sessions: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each event, by kind; from the moment on when all conversations wait or run."""
    rng, table = random.Random(1), _Timed()
    for number in range(sessions):
        table.now += 0.01
        table.post(_arrival(rng, number, agents))
    table.took.clear()
    for number in range(sessions, sessions + rounds):
        table.now += 0.3
        first = next(table.running())
        table.post(TurnStarted(first))
        table.post(TurnWrote(first, rng.randint(10, 3_000)))
        table.post(EngineSeen(sight=Sight(asked_at=table.now, running=len(table.effects.turns))))
        table.post(TimePassed())
        del table.effects.turns[first]
        table.post(TurnEnded(first))
        table.post(_arrival(rng, number, agents))
    return table.took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=500)
    chosen = parser.parse_args()
    took = measured(chosen.agents, chosen.sessions, chosen.rounds)
    table = Table(title=f"One event, {chosen.agents} agents, {chosen.sessions:,} conversations (ms)")
    for column in ("event", "p50", "p99", "worst", f"over {GOAL_MS:.0f} ms"):
        table.add_column(column, justify="left" if column == "event" else "right")
    for kind, times in took.items():
        p99 = statistics.quantiles(times, n=100)[98]
        over = sum(1 for each in times if each > GOAL_MS) / len(times)
        table.add_row(kind, f"{statistics.median(times):.3f}", f"{p99:.2f}", f"{max(times):.2f}", f"{over:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()

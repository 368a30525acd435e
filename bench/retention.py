"""What is gained by knowing who is still in L1: ``python -m bench.retention`` prints the tables of
``docs/design/retention.md``.

In virtual time, on the twin of the field's machine; nothing here needs an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from bench.mix_traces import Mix, mix_trace
from governor.policy.model import SharePolicy
from governor.simulate.deciding import Governor, Host, Policies, read_policies
from governor.simulate.flight import Flight
from governor.simulate.incident import incident
from governor.simulate.result import Result
from governor.simulate.simulator import Simulation
from governor.types import TurnId
from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine, load_machine
from serve.twin.trace import Agent, Distribution, Generator, Header, Line, Shared, Trace, assembled

MACHINE: Final = "rx7900xtx-tp2"
SEEDS: Final = 10
QUIET_SEEDS: Final = 3
AGENTS: Final = 8
THERE: Final = 0.9
"""Part of the known prefix that must have come from L1 to call it there."""
NO_CREDIT, CREDIT, PREWARM = "none", "credit", "credit and prewarm"
SHARES: Final = {
    NO_CREDIT: SharePolicy(retained_tokens=0),
    CREDIT: SharePolicy(),
    PREWARM: SharePolicy(prewarm=True),
}


class Watched(Governor):
    """Notes what it believes to be in L1 when a turn is first granted."""

    def __init__(self, policies: Policies, engine: EngineSettings, host: Host) -> None:
        self.believed: dict[TurnId, bool] = {}
        super().__init__(policies, engine, host)

    def grant(self, turn_id: TurnId, why: str) -> None:
        context = self.retention.context_of(turn_id)
        known = context is not None and self.retention.recency.distance(context) is not None
        if known and context is not None:
            self.believed.setdefault(turn_id, self.retention.recency.holds(context))
        super().grant(turn_id, why)


class Play(msgspec.Struct, frozen=True):
    """One run."""

    result: Result
    believed: dict[TurnId, bool]
    fetches: tuple[Flight, ...]


class Guesses(msgspec.Struct, frozen=True):
    """What was believed to be in L1, held against what L1 served."""

    turns: int
    there: int
    right: int
    believed: int

    @property
    def precision(self) -> float:
        return self.right / self.believed if self.believed else math.nan

    @property
    def recall(self) -> float:
        return self.right / self.there if self.there else math.nan


def play(trace: Trace, machine: Machine, share: SharePolicy, seed: int) -> Play:
    """The same for the same arguments."""
    shipped = read_policies(trace)
    policies = {name: msgspec.structs.replace(each, share=share) for name, each in shipped.items()}
    made: list[Watched] = []

    def decides(engine: EngineSettings, host: Host) -> Watched:
        made.append(Watched(policies, engine, host))
        return made[0]

    run = Simulation(trace, machine, policies, seed, 30.0, decides)
    return Play(run.run(), made[0].believed, tuple(run.fetches))


def guesses(plays: Iterable[Play]) -> Guesses:
    """Of all turns that went on from a known context."""
    turns = there = right = believed = 0
    for each in plays:
        for row in each.result.turns:
            believed_there = each.believed.get(TurnId(row.turn_id))
            if believed_there is None or row.admitted_s is None:
                continue
            was_there = row.cached_device >= THERE * (row.prompt_tokens - row.new_tokens)
            turns += 1
            there += was_there
            believed += believed_there
            right += was_there and believed_there
    return Guesses(turns, there, right, believed)


def quiet_trace(machine: Machine, _seed: int) -> Trace:
    """Eight agents whose contexts are twice L1, most of the time at rest; people come back when they like."""
    return _trace(
        machine,
        "at rest",
        start_s=60.0,
        first=20_000,
        rounds=Distribution(median=60, low=60),
        steps=Distribution(median=3, sigma=0.5),
        think_s=Distribution(median=420, sigma=0.6),
    )


def heartbeat_trace(machine: Machine, _seed: int) -> Trace:
    """The same contexts, each asked a short question every quarter of an hour."""
    return _trace(
        machine,
        "heartbeats",
        start_s=110.0,
        first=14_000,
        rounds=Distribution(median=100, low=100),
        steps=Distribution(median=0.0),
        user_tokens=Distribution(median=60, sigma=0.3),
        final_output=Distribution(median=150, sigma=0.5),
        think_s=Distribution(median=900, sigma=0.03),
    )


def _trace(machine: Machine, name: str, *, start_s: float, first: int, **drawn: Distribution) -> Trace:
    """``first``: by how much the first prompts are smaller than what a context is on average."""
    size = 2 * machine.engine.tiers.device_tokens // AGENTS
    lines: list[Line] = [Header(name=name)]
    for number in range(AGENTS):
        spec = Generator(
            agent=f"a{number}",
            session="main",
            start_s=start_s * number,
            until_s=4 * 3600.0,
            shared=Shared(name="harness", tokens=10_000),
            first_tokens=Distribution(median=size - first, sigma=0.1),
            tool_tokens=Distribution(median=300, sigma=0.8, high=4000),
        )
        lines += [Agent(name=spec.agent), msgspec.structs.replace(spec, **drawn)]
    return assembled(lines)


def busy_trace(machine: Machine, seed: int) -> Trace:
    return mix_trace(Mix(AGENTS, 2.0), machine, seed).trace


def table(
    name: str, trace_of: Callable[[Machine, int], Trace], machine: Machine, seeds: int, shares: Iterable[str]
) -> str:
    """A row of figures for each share policy, over so many seeds."""
    out = [
        f"{name}\n",
        "| | turns | prefilled / new | TTFT mean, s | p50 | p90 | p99 | all done after, s | fetches | they computed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for share in shares:
        plays = [play(trace_of(machine, seed), machine, SHARES[share], seed) for seed in range(seeds)]
        out.append(_row(share, plays))
    return "\n".join(out)


def _row(name: str, plays: list[Play]) -> str:
    rows = [row for each in plays for row in each.result.turns]
    new = sum(row.new_tokens for row in rows)
    again = sum(row.reprefilled_tokens for row in rows)
    waits = sorted(row.first_token_s - row.arrived_s for row in rows if row.first_token_s is not None)
    spans = sum(each.result.ended_s for each in plays) / len(plays)
    fetches = [flight.row() for each in plays for flight in each.fetches]
    computed = sum(row.new_tokens + row.reprefilled_tokens for row in fetches)
    at = partial(_quantile, waits)
    return (
        f"| {name} | {len(rows):,} | {1 + again / new:.3f} | {sum(waits) / len(waits):.1f} | {at(0.5):.1f} | "
        f"{at(0.9):.1f} | {at(0.99):.1f} | {spans:,.0f} | {len(fetches)} | {computed:,} |"
    )


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    machine = load_machine(MACHINE)
    print("| | turns that went on | served from L1 | precision | recall |\n|---|---|---|---|---|")
    incidents = [play(incident(), machine, SharePolicy(), 0)]
    mixes = [play(busy_trace(machine, seed), machine, SharePolicy(), seed) for seed in range(SEEDS)]
    for name, plays in (("incident", incidents), ("8 agents, 2x", mixes)):
        it = guesses(plays)
        print(f"| {name} | {it.turns:,} | {it.there:,} | {it.precision:.2f} | {it.recall:.2f} |")
    without = msgspec.structs.replace(machine.engine.tiers, host_tokens=0, host_slots=0, storage_tokens=0)
    bare = msgspec.structs.replace(machine, engine=msgspec.structs.replace(machine.engine, tiers=without))
    for text in (
        table("8 agents, 2x, busy", busy_trace, machine, SEEDS, SHARES),
        table("8 agents, 2x, at rest", quiet_trace, machine, QUIET_SEEDS, SHARES),
        table("8 agents, 2x, heartbeats", heartbeat_trace, machine, QUIET_SEEDS, SHARES),
        table("8 agents, 2x, heartbeats, no L2 and no L3", heartbeat_trace, bare, QUIET_SEEDS, SHARES),
    ):
        print(f"\n{text}")


if __name__ == "__main__":
    main()

"""Mixes of agents that want more of L1 than there is: their traces, and what they demand.

All agents of a mix draw from the same distributions and want the same: each session ends when what it has asked for is
worth so many seconds of the engine. Conversations begin somewhere in their growth, so that a mix is what it is called
from the first minute on.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

from governor.simulate.generators import draw, draw_tokens
from governor.types import PromptShape
from serve.twin.cost import Cost
from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine
from serve.twin.trace import (
    Agent,
    Distribution,
    Echo,
    Header,
    Line,
    Piece,
    PieceKind,
    Session,
    Shared,
    Trace,
    Turn,
    assembled,
)

DEMAND_S: Final = 2400.0
"""Engine time that all agents of a mix want together, at best."""
LARGEST_TOKENS: Final = 120_000
"""Of a session's own context, on average; agents that would have more have several sessions."""
SHARED: Final = Shared(name="harness", tokens=10_000)
SMALLEST, LARGEST, OLDEST = 0.5, 1.5, 1.4
"""Of a conversation's mean size: at its beginning, at its end, and at most when the run begins."""

STEP_TOKENS: Final = Distribution(median=800, sigma=1.0, low=20, high=8000)
STEP_OUTPUT: Final = Distribution(median=250, sigma=0.9, low=10, high=8000)
FINAL_OUTPUT: Final = Distribution(median=800, sigma=0.9, low=10, high=8000)
TOOL_S: Final = Distribution(median=3, sigma=1.0, high=120)
THINK_S: Final = Distribution(median=15, sigma=0.8, high=300)
STEPS: Final = 7
"""Tool calls to an answer, on average."""
PATIENCE_S: Final = 86_400.0
"""Nobody hangs up: all rules do the same work."""


class Mix(msgspec.Struct, frozen=True):
    """So many agents, whose contexts together are ``factor`` times L1."""

    agents: int
    factor: float

    def sessions(self, l1_tokens: int) -> int:
        """Of each agent."""
        return -(-int(self.factor * l1_tokens / self.agents) // LARGEST_TOKENS)

    def context_tokens(self, l1_tokens: int) -> int:
        """Of each session on average, beside what all share."""
        return int(self.factor * l1_tokens / (self.agents * self.sessions(l1_tokens)))


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn wants at least."""

    context_tokens: int
    """Its prompt."""
    new_tokens: int
    output_tokens: int

    def prefill_s(self, cost: Cost) -> float:
        return cost.prefill_s(self.context_tokens - self.new_tokens, self.new_tokens)

    def steps(self, engine: EngineSettings) -> float:
        """Of decode; the first token comes with the prefill."""
        return max(0, self.output_tokens - 1) / engine.accept_length

    def requests_s(self, cost: Cost, engine: EngineSettings) -> float:
        """What its steps cost beyond those that they would be without it."""
        kv_s = cost.decode_kv_token_s * (self.context_tokens + self.output_tokens / 2)
        return self.steps(engine) * (cost.decode_request_s + kv_s)

    def decode_s(self, cost: Cost, engine: EngineSettings, together: int) -> float:
        """Its part of the steps if so many decode in each."""
        return self.requests_s(cost, engine) + self.steps(engine) * cost.decode_step_s / together

    def engine_s(self, cost: Cost, engine: EngineSettings) -> float:
        """Of the engine, in the fullest batch."""
        return self.prefill_s(cost) + self.decode_s(cost, engine, engine.max_running_requests)

    def first_token_s(self, cost: Cost) -> float:
        """On an idle engine that has all it can have."""
        return cost.arrival_s(self.context_tokens) + self.prefill_s(cost)


class MixTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace with what it wants."""

    trace: Trace
    demand: dict[str, list[tuple[Turn, Demand]]]
    """By session, in order."""


def mix_trace(mix: Mix, machine: Machine, seed: int, demand_s: float = DEMAND_S) -> MixTrace:
    """The same for the same arguments."""
    engine = machine.engine
    l1_tokens = engine.tiers.page_floor(engine.tiers.device_tokens)
    sessions, size = mix.sessions(l1_tokens), mix.context_tokens(l1_tokens)
    lines: list[Line] = [Header(name=f"{mix.agents} agents, {mix.factor:g}x")]
    demand: dict[str, list[tuple[Turn, Demand]]] = {}
    for number in range(mix.agents):
        agent = f"a{number:02}"
        lines.append(Agent(name=agent))
        for name in (f"s{index}" for index in range(sessions)):
            random = Random(f"{seed}/{agent}/{name}")
            start_s = random.uniform(0, 10)
            lines.append(Session(agent=agent, session=name, start_s=start_s, shared=SHARED))
            left_s, asked = demand_s / (mix.agents * sessions), []
            for turn, wants in _turns(agent, name, size, random):
                asked.append((turn, wants))
                left_s -= wants.engine_s(machine.cost, engine)
                if left_s <= 0:
                    break
            lines += [turn for turn, _ in asked]
            demand[f"{agent}/{name}"] = asked
    return MixTrace(trace=assembled(lines), demand=demand)


def _turns(agent: str, session: str, size: int, random: Random) -> Iterator[tuple[Turn, Demand]]:
    """Without end: a conversation grows to its largest size, then another one begins."""
    first = int(size * random.uniform(SMALLEST, OLDEST))
    while True:
        new, written, context, wait_s = first, 0, SHARED.tokens, 0.0
        while context - SHARED.tokens < LARGEST * size:
            begins = context == SHARED.tokens
            is_last = random.random() < 1 / (STEPS + 1)
            output = draw_tokens(FINAL_OUTPUT if is_last else STEP_OUTPUT, random)
            turn = Turn(
                agent=agent,
                session=session,
                after_s=wait_s,
                shape=PromptShape.FRESH if begins else PromptShape.CONTINUATION,
                echo=Echo.REWRITTEN,
                new=(Piece(kind=PieceKind.USER if begins else PieceKind.TOOL, tokens=new),),
                output_tokens=output,
                patience_s=PATIENCE_S,
            )
            # The answer before is new, too: it comes back as other tokens than were written.
            context += written + new
            yield turn, Demand(context_tokens=context, new_tokens=written + new, output_tokens=output)
            new, written = draw_tokens(STEP_TOKENS, random), output
            wait_s = draw(THINK_S if is_last else TOOL_S, random)
        first = int(size * SMALLEST)

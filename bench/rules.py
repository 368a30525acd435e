"""The same trace on the same machine under different rules of who runs when."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from bench.shortest_first import ShortestFirst
from governor.policy.model import Policy
from governor.simulate.deciding import Policies, read_policies
from governor.simulate.result import Result
from governor.simulate.simulator import simulate
from serve.twin.engine_model import QueuePolicy
from serve.twin.machine import Machine
from serve.twin.trace import Trace

MACHINE = "rx7900xtx-tp2"
"""The field's machine, on which the incident was."""
_NO_CAP_TOKENS = 200_000
_HOLD_S = 86_400.0


class Rule(StrEnum):
    """Who decides."""

    FIRST_COME = "first come"
    """The engine alone, as it is by default."""
    LONGEST_PREFIX = "longest prefix"
    """The engine alone with ``--schedule-policy lpm``."""
    SHORTEST = "shortest first"
    """ThunderAgent's rule before the engine."""
    GOVERNOR = "governor"


def played(rule: Rule, trace: Trace, machine: Machine, seed: int = 0) -> Result:
    """One run."""
    match rule:
        case Rule.FIRST_COME:
            return simulate(trace, machine, seed=seed)
        case Rule.LONGEST_PREFIX:
            engine = msgspec.structs.replace(machine.engine, queue_policy=QueuePolicy.LPM)
            return simulate(trace, msgspec.structs.replace(machine, engine=engine), seed=seed)
        case Rule.SHORTEST:
            return simulate(trace, machine, seed=seed, decides=ShortestFirst)
        case Rule.GOVERNOR:
            return simulate(trace, machine, uncapped_policies(trace), seed)


def uncapped_policies(trace: Trace) -> Policies:
    """The shipped policies, but nothing is cut or refused: all rules do the same work, and only time differs."""
    return {name: _uncapped(policy) for name, policy in read_policies(trace).items()}


def _uncapped(policy: Policy) -> Policy:
    output, limits = policy.output, policy.limits
    output = msgspec.structs.replace(
        output,
        tool_step=_NO_CAP_TOKENS,
        final=_NO_CAP_TOKENS,
        compaction=_NO_CAP_TOKENS,
        title=_NO_CAP_TOKENS,
        background=_NO_CAP_TOKENS,
    )
    return msgspec.structs.replace(policy, output=output, limits=msgspec.structs.replace(limits, hold_s=_HOLD_S))

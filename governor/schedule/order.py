"""In which order waiting turns are looked at. Pure; this is the formula.

1. Turns that have waited beyond their budget (``share.waiting_s``), the one that is longest over first, whatever their
   class: no traffic can keep anybody waiting without end (peers' hot-cache starvation).
2. Classes: interactive, normal, background (llm-d's priority bands).
3. Inside a class the least ``attained service - prefix credit``. Attained service is the agent's KV-token-seconds of
   the last minutes over its weight (:mod:`governor.schedule.service`; least attained service, PLAS). The credit is what
   would be lost if the turn came later: ``CREDIT_S`` seconds for each token of its prompt that is usable in L1 now, so
   that among equals the one with the deepest cached state runs before it is pushed out. The credit is bounded by the
   waiting budget of the others, as everything is.
4. Arrival.
"""

from __future__ import annotations

from governor.schedule.events import TurnArrived
from governor.types import AgentClass

CREDIT_S = 10.0
"""Holding a token of L1 for so long is worth computing it once: on the machine of the field a lost context of 100K is
computed in 100 s, and one that is still there returns in 1 s."""

Rank = tuple[int, float, int]
_CLASS_RANK = {agent_class: rank for rank, agent_class in enumerate(AgentClass)}


def class_rank(agent_class: AgentClass) -> int:
    """0 goes first."""
    return _CLASS_RANK[agent_class]


def rank(turn: TurnArrived, *, attained: float, number: int) -> Rank:
    """Of a turn within its waiting budget; sorts ascending. ``number`` counts arrivals."""
    return class_rank(turn.agent_class), attained - CREDIT_S * turn.resident_tokens, number

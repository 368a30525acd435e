"""Attained service: how much of the engine each agent has had lately. Pure.

The measure is KV-token-seconds: the tokens of L1 that an agent's running turns hold, over time, divided by the agent's
weight. It forgets by half each ``half_life_s`` (least attained service with a half-life, as llm-d's program-aware
fairness does it), so that an agent pays for its last minutes and not for its past. With a constant rate ``r`` it tends
to ``r * half_life / ln 2``.
"""

from __future__ import annotations

import math

import msgspec

from governor.types import AgentName

HALF_LIFE_S = 60.0
_FORGOTTEN = 1.0
"""KV-token-seconds not worth keeping an account for."""


class _Account(msgspec.Struct):
    attained: float = 0.0
    rate: float = 0.0
    """KV tokens held, over the weight."""
    at: float = 0.0


class Service:
    """One account an agent, made when it first runs and dropped when all is forgotten."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._decay = math.log(2) / half_life_s
        self._accounts: dict[AgentName, _Account] = {}

    def attained(self, agent: AgentName, now: float) -> float:
        """KV-token-seconds over the weight, by ``now``."""
        account = self._accounts.get(agent)
        return 0.0 if account is None else self._settled(account, now).attained

    def hold(self, agent: AgentName, now: float, tokens: float) -> None:
        """From now on the agent holds ``tokens`` more, already over its weight; negative when it gives them back."""
        account = self._accounts.get(agent)
        if account is None:
            account = self._accounts[agent] = _Account(at=now)
        self._settled(account, now)
        account.rate = max(0.0, account.rate + tokens)
        if account.rate < 1e-9 and account.attained < _FORGOTTEN:
            del self._accounts[agent]

    def _settled(self, account: _Account, now: float) -> _Account:
        kept = math.exp(-self._decay * max(0.0, now - account.at))
        account.attained = account.attained * kept + account.rate * (1 - kept) / self._decay
        account.at = max(now, account.at)
        return account

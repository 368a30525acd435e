"""A governor in front of an engine, and a summariser that asks the same engine, for tests of summaries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from governor.gateway.planner import Planner, prompt_of
from governor.gateway.shaped import Shaped
from governor.gateway.summary import DEADLINE_S, Summariser, SummaryAsked
from governor.gateway.turn import Turn
from governor.gateway.weights import Weights, weigh
from governor.policy.model import CompressionMode, CompressionPolicy, HistoryMode, Policy, RequestPolicy
from governor.tokens.chain import SessionIndex
from governor.tokens.counter import EstimateCounter
from governor.types import AgentName, TokenCount
from governor.wire.request import parse
from governor.wiring import EngineTarget, build_engine
from serve.engine import Endpoint
from tests.harness import Governed, governed

AGENT = AgentName("alice")
__all__ = ["AGENT", "Summarising", "policy_of", "summarising"]


def policy_of(history: HistoryMode = HistoryMode.AS_SENT, **compression: Any) -> Policy:
    fields: dict[str, Any] = {"mode": CompressionMode.ENFORCE, "summary_tokens": 400} | compression
    enforced = CompressionPolicy(**fields)
    return Policy(compression=enforced, request=RequestPolicy(history=history))


class Summarising:
    """What a test needs to have a history summarised."""

    def __init__(self, gateway: Governed, summariser: Summariser, planner: Planner, counter: EstimateCounter) -> None:
        self.gateway = gateway
        self.summariser = summariser
        self._planner = planner
        self._counter = counter
        self.parents: list[Turn] = []

    def shaped(self, messages: Sequence[Any], **body: Any) -> Shaped:
        """A chat as the engine is sent it."""
        request = parse(Endpoint.CHAT, msgspec.json.encode({"model": "m", "messages": messages} | body))
        prompt = prompt_of(request)
        return Shaped(request=request, prompt=prompt, located=self._planner.locate(AGENT, request, prompt, {}))

    async def weigh(self, shaped: Shaped, count: TokenCount, _policy: Policy) -> Weights:
        prompt = shaped.prompt
        return await weigh(self._counter, prompt.messages, prompt.tools, count, without_reasoning=None)

    def parent(self) -> Turn:
        """A turn that has ended, without an answer."""
        turn = self.gateway.governor.book.open(AGENT, Endpoint.CHAT.value, 1)
        with turn:
            self.parents.append(turn)
        return turn

    async def asked(
        self,
        messages: Sequence[Any],
        *,
        policy: Policy | None = None,
        window_tokens: int | None = None,
        idle: bool = False,
        **body: Any,
    ) -> SummaryAsked:
        shaped = self.shaped(messages, **body)
        count = self._counter.count(shaped.prompt)
        return SummaryAsked(
            agent=AGENT,
            parent=self.parent(),
            request=shaped.request,
            located=shaped.located,
            count=count,
            weights=await self.weigh(shaped, count, policy or policy_of()),
            policy=policy or policy_of(),
            window_tokens=window_tokens,
            idle=idle,
        )


@asynccontextmanager
async def summarising(
    engine_url: str, root: Path, *, engine_kind: str = "upstream", deadline_s: float = DEADLINE_S, **options: Any
) -> AsyncIterator[Summarising]:
    """``options`` are those of :func:`tests.harness.governed`."""
    engine = build_engine(EngineTarget(url=engine_url, kind=engine_kind))
    counter = EstimateCounter()
    async with governed(engine_url, root, engine_kind=engine_kind, **options) as gateway:
        governor = gateway.governor
        summariser = Summariser(engine, counter, governor.admission, governor.book, governor.history, deadline_s)
        try:
            yield Summarising(gateway, summariser, Planner(engine, SessionIndex(), counter), counter)
            await gateway.assert_idle()
        finally:
            await engine.aclose()

"""The engine under measurement: one way to ask it, whatever it is, through its adapter of ``serve.engines``.

Prompts go as the engine's own tokens where it takes them (``/v1/completions``), so that their length is exact; else as
a chat. What the engine is was found out before (``governor.cli.bench_engine``).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from governor.errors import UpstreamError
from governor.measure.answer import Answer, AnswerReader
from governor.measure.prompts import Prompt
from governor.measure.result import EngineFacts
from governor.wire.sse import SseSplitter
from serve.engine import Endpoint, Engine, EngineCall, EngineLoad, TurnFacts

_OK = 200
_SHOWN_CHARS = 300

TokensOf = Callable[[str], Awaitable[Sequence[int]]]
"""Text as the engine's tokens. Raises :class:`~governor.errors.UpstreamError`."""
Until = Callable[[], bool]


def _never() -> bool:
    return False


class Keeper(Protocol):
    """Of an engine with tiers: what is done between questions. Raises :class:`~governor.errors.UpstreamError`."""

    async def settle(self) -> object:
        """Wait until copies into lower tiers have ended. Changes nothing."""
        ...

    async def flush(self) -> None:
        """Empty L1 and L2, keep L3."""
        ...

    async def accept_length(self) -> float | None:
        """Tokens a decode step yields, over the last while; ``None`` without speculation. Changes nothing."""
        ...

    async def aclose(self) -> None: ...


class Target:
    """Asks. Judges nothing."""

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        *,
        tokens_of: TokensOf | None = None,
        keeper: Keeper | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``now`` tells seconds of the engine's clock."""
        self.facts = facts
        self.tokens_of = tokens_of
        self.keeper = keeper
        self.now = now
        self._engine = engine
        self._asked = 0

    async def ask(self, prompt: Prompt, output_tokens: int, until: Until = _never) -> Answer:
        """Greedy, to exactly so many tokens if the engine obeys; ended early once ``until`` says so.

        Raises :class:`~governor.errors.UpstreamError`.
        """
        if prompt.ids is not None:
            fields: dict[str, Any] = {"prompt": prompt.ids}
            return await self._stream(Endpoint.COMPLETIONS, fields, output_tokens, until)
        fields = {"messages": [{"role": "user", "content": prompt.text}]}
        return await self._stream(Endpoint.CHAT, fields, output_tokens, until)

    async def ask_messages(self, messages: Sequence[dict[str, Any]], output_tokens: int) -> Answer:
        """A chat as it is. Raises :class:`~governor.errors.UpstreamError`."""
        return await self._stream(Endpoint.CHAT, {"messages": messages}, output_tokens, _never)

    async def count(self, text: str) -> int | None:
        """Tokens of a chat of this text; ``None`` where only an answer's usage tells."""
        body = {"model": self.facts.model, "messages": [{"role": "user", "content": text}]}
        found = await self._engine.count_prompt(Endpoint.CHAT, msgspec.json.encode(body))
        return None if found is None else found.tokens

    async def load(self) -> EngineLoad:
        return await self._engine.load()

    async def accept_length(self) -> float | None:
        return None if self.keeper is None else await self.keeper.accept_length()

    async def is_ready(self) -> bool:
        return await self._engine.is_ready()

    async def aclose(self) -> None:
        await self._engine.aclose()
        if self.keeper is not None:
            await self.keeper.aclose()

    async def _stream(self, endpoint: Endpoint, fields: dict[str, Any], output_tokens: int, until: Until) -> Answer:
        self._asked += 1
        turn_id = f"b{self._asked:012}"
        body = {
            "model": self.facts.model,
            **fields,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **self._engine.capabilities.request_additions(endpoint, TurnFacts(turn_id=turn_id)),
        }
        if self._engine.capabilities.tier_split_field is not None:
            body[self._engine.capabilities.tier_split_field] = True
        call = EngineCall(endpoint=endpoint, body=msgspec.json.encode(body), turn_id=turn_id)
        asked_at = self.now()
        reader, splitter = AnswerReader(asked_at, output_tokens), SseSplitter()
        async with self._engine.open(call) as head, aclosing(head.chunks()) as chunks:  # type: ignore[type-var]
            if head.status != _OK:
                said = b"".join([chunk async for chunk in chunks])[:_SHOWN_CHARS].decode(errors="replace")
                raise UpstreamError(f"The engine answered {head.status}: {said}")
            async for chunk in chunks:
                at_s = self.now() - asked_at
                for event in splitter.feed(chunk):
                    if event.data is not None:
                        reader.feed(event.data, at_s)
                if until():
                    return reader.answer(self.now() - asked_at, stopped=True)
        if not reader.has_output():
            raise UpstreamError("The engine ended its answer without a token.")
        return reader.answer(self.now() - asked_at)

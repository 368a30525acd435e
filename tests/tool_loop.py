"""A client that calls one tool after another and sends its whole history with every call, as all of them do."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx
import msgspec

from bench.histories import log, prose, seeded
from tests.harness import Governed
from tests.twin_server import WEATHER

PATIENCE_S = 240
"""A summary may be written first."""


class ToolLoop:
    """Its calls and results are of its own making, whatever the model answers."""

    def __init__(self, gateway: Governed, agent: str, model: str = "tiny-hybrid", *, seed: int = 7) -> None:
        self._gateway = gateway
        self._agent = agent
        self._model = model
        self._random = seeded(seed)
        self._calls = count()
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"You are a careful engineer, number {seed}. " * 20},
            {"role": "user", "content": "Find out why the tests of the cache fail."},
        ]

    async def ask(self, **fields: Any) -> httpx.Response:
        """Its history as it is."""
        body = {"model": self._model, "messages": self.messages, "tools": [WEATHER], "max_tokens": 16}
        async with self._gateway.client(self._agent) as client:
            client.timeout = httpx.Timeout(PATIENCE_S)
            return await client.post("/v1/chat/completions", json=body | fields)

    async def step(self, lines: int = 30, **fields: Any) -> None:
        """One call of the model, and the tool call that follows."""
        (await self.ask(**fields)).raise_for_status()
        self.on_tool(lines)

    def on_tool(self, lines: int = 30) -> None:
        """An answer that calls the tool, and its result: a log of so many lines, 20 tokens each."""
        number = next(self._calls)
        arguments = msgspec.json.encode({"command": f"make {number}"}).decode()
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
        self.messages += [
            {"role": "assistant", "content": prose(self._random, 8), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": log(self._random, lines)},
        ]

    def on_answer(self, question: str) -> None:
        """An answer to the user, and what he asks next."""
        self.messages += [
            {"role": "assistant", "content": prose(self._random, 40)},
            {"role": "user", "content": question},
        ]

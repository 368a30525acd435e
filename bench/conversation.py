"""Conversations such as agents send: a system prompt, tools, and rounds of tool calls with their results.

Made up from a seed, so that two runs send the same bytes. A token is taken to be four bytes of body.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec

BYTES_PER_TOKEN = 4
_TOOLS = 24
_GROWTH = 1.25
_ROUND_BYTES = 2400
"""One call and its result, on average; what a file read or a shell command returns."""
_LINES = (
    "def load(path: Path) -> dict[str, object]:",
    '    """Read one file and return its "fields"; raises OSError."""',
    "    with path.open(encoding='utf-8') as file:",
    "        return json.load(file)",
    "INFO 12:04:31 worker-3 finished batch 118 of 400 in 2.31 s",
    "-rw-r--r-- 1 user user  18234 Mar  2 09:14 src/server/router.py",
    "Error: connection to 10.0.0.7:5432 refused \u2014 retry 2 of 5",
    "\t{ id: 'a91f', state: \"queued\", retries: 0 },",
)


class Conversation:
    """One agent's conversation. :meth:`grow` adds a tool call and its result, as an agent's next request has them."""

    def __init__(self, prompt_tokens: int, *, seed: str, model: str) -> None:
        self._rng = random.Random(seed)
        self._calls = 0
        budget = prompt_tokens * BYTES_PER_TOKEN
        head: dict[str, Any] = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 65536,  # Hermes's stock value, which the shipped policy clamps: the body is edited
            "tools": [_tool(number) for number in range(_TOOLS)] if budget >= 20_000 else [_tool(0)],
        }
        self._head = msgspec.json.encode(head)[:-1] + b',"messages":['
        self._messages: list[bytes] = [
            self._message(role="system", content=self._text(min(8000, budget // 4))),
            self._message(role="user", content=self._text(min(600, budget // 8))),
        ]
        while self.body_bytes < budget:
            self._round(min(_ROUND_BYTES, max(300, budget - self.body_bytes)))

        self._most_bytes = budget * _GROWTH

    @property
    def is_full(self) -> bool:
        """Grown by so much that it no longer stands for its size."""
        return self.body_bytes > self._most_bytes

    @property
    def body_bytes(self) -> int:
        return len(self._head) + sum(len(message) + 1 for message in self._messages) + 1

    def grow(self) -> None:
        """One more round."""
        self._round(_ROUND_BYTES if self.body_bytes > 20_000 else 300)

    def body(self) -> bytes:
        """The request as it is now."""
        return self._head + b",".join(self._messages) + b"]}"

    def _round(self, size: int) -> None:
        self._calls += 1
        call_id = f"call_{self._rng.getrandbits(64):016x}"
        arguments = msgspec.json.encode({"path": f"src/module_{self._calls}.py", "limit": 200}).decode()
        call = {"id": call_id, "type": "function", "function": {"name": "tool_0", "arguments": arguments}}
        self._messages.append(self._message(role="assistant", content="I look at the file.", tool_calls=[call]))
        self._messages.append(self._message(role="tool", tool_call_id=call_id, content=self._text(size - 200)))

    def _text(self, size: int) -> str:
        lines: list[str] = []
        length = 0
        while length < size:
            line = f"{self._rng.choice(_LINES)} {self._rng.getrandbits(24):x}"
            lines.append(line)
            length += len(line) + 1
        return "\n".join(lines)

    @staticmethod
    def _message(**fields: Any) -> bytes:
        return msgspec.json.encode(fields)


def conversations(prompt_tokens: int, *, seed: str, model: str) -> Iterator[Conversation]:
    """One conversation after another; they share nothing but the tools."""
    for number in itertools.count():
        yield Conversation(prompt_tokens, seed=f"{seed}/{number}", model=model)


def _tool(number: int) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": f"The {name} to use; see the notes on tool {number} above."}
        for name in ("path", "pattern", "command", "reason")
    }
    return {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Runs one step on the workspace and returns what it printed. " * 3,
            "parameters": {"type": "object", "properties": properties, "required": ["path"]},
        },
    }

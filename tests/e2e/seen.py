"""What a scripted engine saw, and the steps that make clients do things."""

from __future__ import annotations

import json
from typing import Any

from serve.scripted import CallKind, Hit, ScriptedEngine

SUMMARY = "Goal: print numbers. Done: every batch so far. Next: say that it is finished."
BIG_COMMAND = "seq 100000 100999"
"""Prints 7000 characters."""


def agent_calls(engine: ScriptedEngine) -> list[Hit]:
    """Calls of the agent itself, oldest first."""
    return calls_of(engine, CallKind.AGENT)


def calls_of(engine: ScriptedEngine, kind: CallKind) -> list[Hit]:
    return [hit for hit in engine.hits if hit.kind == kind]


def body_of(hit: Hit) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(hit.body)
    return body


def text_of(message: dict[str, Any]) -> str:
    """The text of a chat message, in parts or not."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def tool_outputs(hit: Hit) -> list[str]:
    """The results of tool calls in a request, in order."""
    return [text_of(message) for message in body_of(hit)["messages"] if message["role"] == "tool"]


def call(tool: str, command: str) -> str:
    """The word that makes the model call a shell tool."""
    return f"call:{tool}:{json.dumps({'command': command})}"

"""``/v1/chat/completions`` as SGLang writes it: pieces of a stream, and a whole answer. Pure.

Fields and their order are those of ``openai/sse_utils.py`` (text), ``openai/protocol.py`` (everything else), SGLang
0.5.23.
"""

from __future__ import annotations

from typing import Any

import msgspec

from serve.twin_server.generation import Generation
from serve.twin_server.usage import WEIGHTS, weights

DONE = b"data: [DONE]\n\n"


def event(content: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(content) + b"\n\n"


class ChatStream:
    """The chunks of one answer."""

    def __init__(self, rid: str, created: int, model: str) -> None:
        self._head = {"id": rid, "object": "chat.completion.chunk", "created": created, "model": model}

    def role(self, index: int, usage: dict[str, Any] | None = None) -> bytes:
        return self._text(index, {"reasoning_content": None, "role": "assistant", "content": ""}, usage)

    def content(self, index: int, text: str, usage: dict[str, Any] | None = None) -> bytes:
        return self._text(index, {"reasoning_content": None, "content": text}, usage)

    def reasoning(self, index: int, text: str, usage: dict[str, Any] | None = None) -> bytes:
        return self._text(index, {"reasoning_content": text}, usage)

    def call(self, index: int, call: dict[str, Any], usage: dict[str, Any] | None = None) -> bytes:
        delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}
        return self._chunk([_choice(index, delta)], {"usage": usage})

    def finish(self, index: int, reason: str, matched: int | str | None) -> bytes:
        return self._chunk([_choice(index, {"reasoning_content": None}, reason, matched)])

    def extension(self, sglext: dict[str, Any], name: str | None = None) -> bytes:
        return self._chunk([], {"usage": None, "sglext": sglext}, name)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._chunk([], {"usage": usage})

    def _text(self, index: int, delta: dict[str, Any], usage: dict[str, Any] | None) -> bytes:
        return self._chunk([_choice(index, delta)], None if usage is None else {"usage": usage})

    def _chunk(self, choices: list[Any], more: dict[str, Any] | None = None, name: str | None = None) -> bytes:
        return event({**self._head, "choices": choices, **(more or {})}, name)


def _choice(
    index: int, delta: dict[str, Any], reason: str | None = None, matched: int | str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": matched}


def tool_call(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """A call's start has its id and name, what follows only more of its arguments."""
    return {"id": call_id, "index": index, "type": "function", "function": {"name": name, "arguments": arguments}}


def message(content: str, reasoning: str | None, calls: list[dict[str, Any]] | None) -> dict[str, Any]:
    told: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning or None}
    return told if calls is None else told | {"tool_calls": calls}


def choice(
    index: int, message: dict[str, Any], finish: str, matched: int | str | None, more: dict[str, Any]
) -> dict[str, Any]:
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": finish,
        "matched_stop": matched,
        **more,
    }


def whole(
    first: Generation,
    model: str,
    choices: list[dict[str, Any]],
    usage: dict[str, Any],
    sglext: dict[str, Any] | None,
) -> dict[str, Any]:
    answer = {
        "id": first.rid,
        "object": "chat.completion",
        "created": int(first.began_at),
        "model": model,
        "choices": choices,
        "usage": usage,
        "metadata": {"weight_version": WEIGHTS} | weights(first.written_tokens),
    }
    return answer if sglext is None else answer | {"sglext": sglext}

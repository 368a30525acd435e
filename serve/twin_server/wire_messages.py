"""Chat answers in the Messages dialect, as SGLang turns them (``anthropic/serving.py``). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from serve.twin_server.wire_chat import event

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def messages_usage(usage: dict[str, Any] | None, *, output: bool = True) -> dict[str, Any]:
    """Cached tokens are told apart from the others, and not at all where there are none."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    told = {"input_tokens": max(usage["prompt_tokens"] - cached, 0)}
    if cached:
        told["cache_read_input_tokens"] = cached
    return told | {"output_tokens": usage["completion_tokens"] if output else 0}


def whole_message(answer: dict[str, Any]) -> dict[str, Any]:
    choice = answer["choices"][0]
    said = choice["message"]
    content: list[dict[str, Any]] = []
    if said["reasoning_content"]:
        content.append({"type": "thinking", "thinking": said["reasoning_content"]})
    if said["content"]:
        content.append({"type": "text", "text": said["content"]})
    for call in said.get("tool_calls") or ():
        function = call["function"]
        arguments = msgspec.json.decode(function["arguments"])
        content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "content": content or [{"type": "text", "text": ""}],
        "model": answer["model"],
        "stop_reason": _STOP_REASONS.get(choice["finish_reason"], "end_turn"),
        "usage": messages_usage(answer["usage"]),
    }


class MessageStream:
    """Fed with the events of a chat stream, in order."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = f"msg_{uuid.uuid4().hex}"
        self._started = False
        self._index = 0
        self._open: str | None = None
        self._finish: str | None = None
        self._usage: dict[str, Any] = {"output_tokens": 0}

    def read(self, chunk: bytes) -> Iterator[bytes]:
        """One chat event's bytes to events of this dialect."""
        data = chunk.partition(b"data: ")[2].strip()
        if data == b"[DONE]":
            yield from self._end()
            return
        content = msgspec.json.decode(data)
        if "error" in content:
            yield from self.failed(content["error"]["message"], content["error"]["code"])
            return
        usage = content.get("usage")
        if usage is not None:
            self._usage = {"output_tokens": usage["completion_tokens"]}
        if not content["choices"]:
            return
        choice = content["choices"][0]
        if choice["finish_reason"] is not None:
            self._finish = choice["finish_reason"]
        delta = choice["delta"]
        says = delta.get("reasoning_content") or delta.get("tool_calls") or delta.get("content")
        if says or self._finish is not None:
            yield from self._start(usage)
        if delta.get("reasoning_content"):
            yield from self._block("thinking", {"type": "thinking", "thinking": ""})
            yield self._delta({"type": "thinking_delta", "thinking": delta["reasoning_content"]})
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if function["name"]:
                block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
                yield from self._block("tool_use", block, is_new=True)
            if function["arguments"]:
                yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
        if delta.get("content"):
            yield from self._block("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta["content"]})

    def failed(self, message: str, status: int) -> Iterator[bytes]:
        """An error ends it; 5xx tell no more than that."""
        yield from self._start(None)
        yield from self._close()
        kind = "invalid_request_error" if status < 500 else "overloaded_error" if status == 503 else "api_error"
        said = message if status < 500 else "Internal server error"
        yield _named({"type": "error", "error": {"type": kind, "message": said}})
        yield _named({"type": "message_stop"})

    def _start(self, usage: dict[str, Any] | None) -> Iterator[bytes]:
        if self._started:
            return
        self._started = True
        message = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model,
            "usage": messages_usage(usage, output=False),
        }
        yield _named({"type": "message_start", "message": message})

    def _block(self, kind: str, block: dict[str, Any], *, is_new: bool = False) -> Iterator[bytes]:
        if self._open is not None and (is_new or self._open != kind):
            yield from self._close()
        if self._open is None:
            self._open = kind
            yield _named({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _named({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _named({"type": "content_block_stop", "index": self._index})
            self._open = None
            self._index += 1

    def _end(self) -> Iterator[bytes]:
        if self._finish is None:
            return
        yield from self._close()
        delta = {"stop_reason": _STOP_REASONS.get(self._finish, "end_turn")}
        yield _named({"type": "message_delta", "delta": delta, "usage": self._usage})
        yield _named({"type": "message_stop"})


def _named(content: dict[str, Any]) -> bytes:
    return event(content, content["type"])

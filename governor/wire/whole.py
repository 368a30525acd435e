"""A chat's stream put together to the answer that a client gets who did not ask for a stream. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from governor.wire.chunks import Chunk, Head, head_of, read
from governor.wire.seam import Kind


class Whole:
    """Fed with the data of each event; at the end it tells the body."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._texts: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._after_calls: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: dict[str, Any] = {}
        self._usage: Any = None
        self._extensions: dict[str, Any] = {}
        self.error: bytes | None = None
        """The engine's own error event, if one came."""

    @property
    def is_complete(self) -> bool:
        """It has said how it ended."""
        return bool(self._finish) or self.error is not None

    def on_data(self, data: bytes) -> None:
        """Take one event."""
        chunk = read(data)
        if chunk is None:
            return
        if chunk.error:
            self.error = data
            return
        self._head = self._head or head_of(chunk)
        self._usage = chunk.usage if chunk.usage is not None else self._usage
        if isinstance(chunk.sglext, dict):
            self._extensions |= chunk.sglext
        for kind, text in chunk.texts:
            behind_call = kind is Kind.TEXT and self._calls
            (self._after_calls if behind_call else self._texts[kind]).append(text)
        for call in chunk.calls:
            self._on_call(call)
        if chunk.finish_reason is not None:
            self._finish = _finish_of(chunk, data)

    def body(self) -> bytes:
        """The plain answer, or the engine's error."""
        if self.error is not None:
            return self.error
        content, reasoning = ("".join(self._texts[kind]) for kind in (Kind.TEXT, Kind.REASONING))
        behind = "".join(self._after_calls)
        if not behind.isspace():  # line breaks between calls are no text
            content += behind
        message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning or None}
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        choice = {"index": 0, "message": message, "logprobs": None, **self._finish}
        head = self._head
        answer: dict[str, Any] = {
            "id": head.id if head else "",
            "object": "chat.completion",
            "created": head.created if head else 0,
            "model": head.model if head else "",
            "choices": [choice],
        }
        answer |= {"usage": self._usage} if self._usage is not None else {}
        answer |= {"sglext": self._extensions} if self._extensions else {}
        return msgspec.json.encode(answer)

    def _on_call(self, piece: Any) -> None:
        function = piece.get("function") if isinstance(piece, dict) else None
        if not isinstance(function, dict):
            return
        index = piece.get("index")
        number = index if type(index) is int else 0
        call = self._calls.setdefault(
            number, {"id": None, "index": number, "type": "function", "function": {"name": None, "arguments": ""}}
        )
        call["id"] = call["id"] or piece.get("id")
        told = call["function"]
        told["name"] = told["name"] or function.get("name")
        told["arguments"] += function.get("arguments") or ""


def _finish_of(chunk: Chunk, data: bytes) -> dict[str, Any]:
    """Why it ended, and by what token or text; a plain answer does not tell that of calls."""
    choice = msgspec.json.decode(data)["choices"][0]
    finish: dict[str, Any] = {"finish_reason": chunk.finish_reason}
    if "matched_stop" in choice:
        finish["matched_stop"] = None if chunk.finish_reason == "tool_calls" else choice["matched_stop"]
    return finish

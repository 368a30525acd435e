"""The form of an answer on Anthropic's messages API."""

from __future__ import annotations

from typing import Any

import msgspec

from serve.scripted.answer import Answer, Part, Piece
from serve.scripted.ask import Dialect
from serve.scripted.errors import error_body
from serve.scripted.script import sse_frame

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_SIGNATURE = "c2NyaXB0ZWQ="


class MessagesEncoder:
    """``/v1/messages``: content blocks, one open at a time."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._block = -1
        self._open: tuple[Part, int] | None = None

    def opening(self) -> bytes:
        message = self._message([], None, output_tokens=0)
        return _event("message_start", {"message": message})

    def piece(self, piece: Piece) -> bytes:
        frames = b""
        if self._open != (piece.part, piece.call):
            frames = self._close_block() + self._open_block(piece)
        if not piece.text:
            return frames
        delta = {
            Part.TEXT: {"type": "text_delta", "text": piece.text},
            Part.REASONING: {"type": "thinking_delta", "thinking": piece.text},
            Part.CALL: {"type": "input_json_delta", "partial_json": piece.text},
        }[piece.part]
        return frames + _event("content_block_delta", {"index": self._block, "delta": delta})

    def closing(self) -> bytes:
        answer = self._answer
        usage = {"output_tokens": answer.usage.completion_tokens}
        delta = {"stop_reason": _STOP_REASONS.get(answer.finish, answer.finish), "stop_sequence": None}
        return (
            self._close_block() + _event("message_delta", {"delta": delta, "usage": usage}) + _event("message_stop", {})
        )

    def whole(self) -> bytes:
        answer = self._answer
        blocks: list[dict[str, Any]] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": _SIGNATURE})
        if answer.text or not (answer.calls or answer.reasoning):
            blocks.append({"type": "text", "text": answer.text})
        for call in answer.calls:
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
        stop = _STOP_REASONS.get(answer.finish, answer.finish)
        return msgspec.json.encode(self._message(blocks, stop, output_tokens=answer.usage.completion_tokens))

    def error(self, message: str, code: str | int | None) -> bytes:
        kind = "overloaded_error" if code in (429, 503, 529) else "api_error"
        return sse_frame(error_body(Dialect.MESSAGES, message, kind, code), "error")

    def _message(self, blocks: list[dict[str, Any]], stop: str | None, *, output_tokens: int) -> dict[str, Any]:
        usage = self._answer.usage
        cached = usage.cached_tokens or 0
        counts = {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": output_tokens,
        }
        return {
            "id": f"msg_{self._answer.id}",
            "type": "message",
            "role": "assistant",
            "model": self._answer.model,
            "content": blocks,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": counts,
        }

    def _open_block(self, piece: Piece) -> bytes:
        self._block += 1
        self._open = (piece.part, piece.call)
        if piece.part is Part.CALL:
            call = self._answer.calls[piece.call]
            block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        elif piece.part is Part.REASONING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            block = {"type": "text", "text": ""}
        return _event("content_block_start", {"index": self._block, "content_block": block})

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        frames = b""
        if self._open[0] is Part.REASONING:
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            frames = _event("content_block_delta", {"index": self._block, "delta": delta})
        self._open = None
        return frames + _event("content_block_stop", {"index": self._block})


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return sse_frame(msgspec.json.encode({"type": kind, **fields}), kind)


def _input(arguments: str) -> Any:
    """Arguments cut by the output cap are no JSON; the API then shows an empty input."""
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}

"""The form of an answer on OpenAI's responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from serve.scripted.answer import Answer, Part, Piece
from serve.scripted.script import sse_frame


class ResponsesEncoder:
    """``/v1/responses``: output items, one open at a time, every event numbered."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sequence = -1
        self._open: tuple[Part, int] | None = None
        self._text = ""
        self._output: list[dict[str, Any]] = []

    def opening(self) -> bytes:
        response = self._response("in_progress", [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, piece: Piece) -> bytes:
        frames = b""
        if self._open != (piece.part, piece.call):
            frames = self._close_item() + self._open_item(piece)
        if not piece.text:
            return frames
        self._text += piece.text
        place = {"item_id": self._item_id(), "output_index": len(self._output), "delta": piece.text}
        if piece.part is Part.CALL:
            return frames + self._event("response.function_call_arguments.delta", **place)
        if piece.part is Part.REASONING:
            return frames + self._event("response.reasoning_text.delta", content_index=0, **place)
        return frames + self._event("response.output_text.delta", content_index=0, logprobs=[], **place)

    def closing(self) -> bytes:
        frames = self._close_item()
        is_cut = self._answer.finish == "length"
        status = "incomplete" if is_cut else "completed"
        return frames + self._event(f"response.{status}", response=self._response(status, self._output))

    def whole(self) -> bytes:
        for piece in self._answer.pieces:
            self.piece(piece)
        self._close_item()
        status = "incomplete" if self._answer.finish == "length" else "completed"
        return msgspec.json.encode(self._response(status, self._output))

    def error(self, message: str, code: str | int | None) -> bytes:
        return self._event("error", code=None if code is None else str(code), message=message, param=None)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return sse_frame(msgspec.json.encode({"type": kind, "sequence_number": self._sequence, **fields}), kind)

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        answer, usage = self._answer, self._answer.usage
        counts = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return {
            "id": f"resp_{answer.id}",
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": answer.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if status == "in_progress" else counts,
        }

    def _item_id(self) -> str:
        part = self._open[0] if self._open else Part.TEXT
        prefix = {Part.TEXT: "msg", Part.REASONING: "rs", Part.CALL: "fc"}[part]
        return f"{prefix}_{self._answer.id}_{len(self._output)}"

    def _item(self, part: Part, call: int, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(), "status": status}
        if part is Part.CALL:
            start = self._answer.calls[call]
            return item | {
                "type": "function_call",
                "call_id": start.id,
                "name": start.name,
                "arguments": self._text,
            }
        is_open = status == "in_progress"
        if part is Part.REASONING:
            content = [] if is_open else [{"type": "reasoning_text", "text": self._text}]
            return item | {"type": "reasoning", "summary": [], "content": content}
        return item | {"type": "message", "role": "assistant", "content": [] if is_open else [_text_part(self._text)]}

    def _open_item(self, piece: Piece) -> bytes:
        self._open = (piece.part, piece.call)
        self._text = ""
        index = len(self._output)
        item = self._item(piece.part, piece.call, "in_progress")
        frames = self._event("response.output_item.added", output_index=index, item=item)
        if piece.part is Part.TEXT:
            place = {"item_id": self._item_id(), "output_index": index, "content_index": 0}
            frames += self._event("response.content_part.added", part=_text_part(""), **place)
        return frames

    def _close_item(self) -> bytes:
        if self._open is None:
            return b""
        part, call = self._open
        frames = b"".join(self._done_events(part, call))
        item = self._item(part, call, "completed")
        frames += self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open = None
        return frames

    def _done_events(self, part: Part, call: int) -> Iterator[bytes]:
        place: dict[str, Any] = {"item_id": self._item_id(), "output_index": len(self._output)}
        if part is Part.CALL:
            name = self._answer.calls[call].name
            yield self._event("response.function_call_arguments.done", name=name, arguments=self._text, **place)
            return
        place["content_index"] = 0
        if part is Part.REASONING:
            yield self._event("response.reasoning_text.done", text=self._text, **place)
            return
        yield self._event("response.output_text.done", text=self._text, logprobs=[], **place)
        yield self._event("response.content_part.done", part=_text_part(self._text), **place)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}

"""The form of an answer on the OpenAI chat and completions APIs, and the protocol all forms follow.

An encoder serves one answer. It is fed in order: ``opening``, one ``piece`` after another, ``closing``; or ``whole``
for an answer in one body; or ``error`` in place of any later event.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from serve.scripted.answer import Answer, Part, Piece, Usage
from serve.scripted.ask import Ask
from serve.scripted.errors import error_object
from serve.scripted.script import sse_frame

_DONE = b"data: [DONE]\n\n"


class Encoder(Protocol):
    """Bytes of a stream's events, or of a whole body. Stateful: one answer, one encoder."""

    def opening(self) -> bytes: ...

    def piece(self, piece: Piece) -> bytes: ...

    def closing(self) -> bytes: ...

    def whole(self) -> bytes: ...

    def error(self, message: str, code: str | int | None) -> bytes: ...


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as chat and completions report it."""
    report: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        report["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        report["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return report


class ChatEncoder:
    """``/v1/chat/completions``."""

    def __init__(self, ask: Ask, answer: Answer) -> None:
        self._ask = ask
        self._answer = answer
        envelope = {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion.chunk",
            "created": answer.created,
            "model": answer.model,
        }
        self._open_envelope = b"data: " + msgspec.json.encode(envelope)[:-1] + b',"choices":['
        # Text deltas are most of a long stream, so all but the text is encoded once.
        self._delta_heads = {
            part: [self._open_envelope + b'{"index":%d,"delta":{"%b":' % (index, name) for index in range(ask.choices)]
            for part, name in ((Part.TEXT, b"content"), (Part.REASONING, b"reasoning_content"))
        }

    def opening(self) -> bytes:
        return self._chunks({"role": "assistant", "content": ""}, None)

    def piece(self, piece: Piece) -> bytes:
        if piece.part is not Part.CALL:
            text = msgspec.json.encode(piece.text)
            return b"".join(head + text + b'},"finish_reason":null}]}\n\n' for head in self._delta_heads[piece.part])
        call: dict[str, Any] = {"index": piece.call, "function": {"arguments": piece.text}}
        if not piece.tokens:
            start = self._answer.calls[piece.call]
            call |= {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": ""}}
        return self._chunks({"tool_calls": [call]}, None)

    def closing(self) -> bytes:
        frames = self._chunks({}, self._answer.finish)
        if self._ask.wants_usage:
            usage = msgspec.json.encode(usage_object(self._answer.usage))
            frames += self._open_envelope + b'],"usage":' + usage + b"}\n\n"
        return frames + _DONE

    def whole(self) -> bytes:
        answer = self._answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        elif not answer.reasoning:
            message["content"] = answer.text
        body = {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": answer.created,
            "model": answer.model,
            "choices": [
                {"index": index, "message": message, "finish_reason": answer.finish}
                for index in range(self._ask.choices)
            ],
            "usage": usage_object(answer.usage),
        }
        return msgspec.json.encode(body)

    def error(self, message: str, code: str | int | None) -> bytes:
        return sse_frame(msgspec.json.encode({"error": error_object(message, "server_error", code)}))

    def _chunks(self, delta: dict[str, Any], finish: str | None) -> bytes:
        choices = (
            msgspec.json.encode({"index": index, "delta": delta, "finish_reason": finish})
            for index in range(self._ask.choices)
        )
        return b"".join(self._open_envelope + choice + b"]}\n\n" for choice in choices)


class CompletionsEncoder:
    """``/v1/completions``: text only; reasoning and calls have no place in this API and are left out."""

    def __init__(self, ask: Ask, answer: Answer) -> None:
        self._ask = ask
        self._answer = answer

    def opening(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        return self._chunk(piece.text, None) if piece.part is Part.TEXT else b""

    def closing(self) -> bytes:
        frames = self._chunk("", self._answer.finish)
        if self._ask.wants_usage:
            frames += self._frame([], {"usage": usage_object(self._answer.usage)})
        return frames + _DONE

    def whole(self) -> bytes:
        choices = self._choices(self._answer.text, self._answer.finish)
        return msgspec.json.encode(self._envelope(choices) | {"usage": usage_object(self._answer.usage)})

    def error(self, message: str, code: str | int | None) -> bytes:
        return sse_frame(msgspec.json.encode({"error": error_object(message, "server_error", code)}))

    def _chunk(self, text: str, finish: str | None) -> bytes:
        return self._frame(self._choices(text, finish), {})

    def _frame(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        return sse_frame(msgspec.json.encode(self._envelope(choices) | more))

    def _choices(self, text: str, finish: str | None) -> list[dict[str, Any]]:
        return [
            {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
            for index in range(self._ask.choices)
        ]

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        answer = self._answer
        return {
            "id": f"cmpl-{answer.id}",
            "object": "text_completion",
            "created": answer.created,
            "model": answer.model,
            "choices": choices,
        }

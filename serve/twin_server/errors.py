"""What the twin's server refuses, and how SGLang words and wraps it.

::

    Refused                 anything that is answered with an error
    ├── BadRequest          400: the request is wrong
    └── EngineFailed        5xx: the engine gave it up

SGLang 0.5.23 has three envelopes: a flat object on the OpenAI routes (``serving_base.py``), ``{"error": {"message"}}``
on its own (``http_server.py``), Anthropic's on ``/v1/messages`` (``anthropic/serving.py``).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

_ANTHROPIC_TYPES = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}


class Refused(Exception):
    """``kind`` is the ``type`` of the flat envelope."""

    def __init__(self, status: int, message: str, kind: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.headers: dict[str, str] = {}

    def flat(self, kind: str | None = None) -> dict[str, Any]:
        """``ErrorResponse`` of ``openai/protocol.py``."""
        return {
            "object": "error",
            "message": self.message,
            "type": kind or self.kind,
            "param": None,
            "code": self.status,
        }

    def event(self) -> dict[str, Any]:
        """As the last event of a stream."""
        return {"error": self.flat(HTTPStatus(self.status).name)}

    def openai_response(self) -> Response:
        return json_response(self.flat(), self.status, self.headers)

    def native_response(self) -> Response:
        """Of ``/generate`` and the other routes of SGLang's own."""
        return json_response({"error": {"message": self.message}}, self.status, self.headers)

    def native_event(self) -> dict[str, Any]:
        error = {
            "message": self.message,
            "type": "invalid_request_error",
            "code": self.status,
            "retryable": False,
        }
        return {"error": error}

    def anthropic(self) -> dict[str, Any]:
        """5xx tell no more than that."""
        message = self.message if self.status < 500 else "Internal server error"
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def anthropic_response(self) -> Response:
        return json_response(self.anthropic(), self.status, self.headers)


class BadRequest(Refused):
    def __init__(self, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(400, message, kind)


class EngineFailed(Refused):
    """``503`` where it is full, ``500`` where memory ran out."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(status, message, str(status))
        if retry_after_s is not None:
            self.headers = {"retry-after": str(retry_after_s)}


def malformed(problem: str) -> BadRequest:
    """What FastAPI's own validation gives on the OpenAI routes."""
    return BadRequest(problem, "Bad Request")


def prompt_too_long(prompt_tokens: int, window_tokens: int) -> BadRequest:
    """``TokenizerManager._validate_one_request``; clients recover by these sentences, so every letter counts."""
    return BadRequest(
        f"The input ({prompt_tokens} tokens) is longer than the model's context length ({window_tokens} tokens)."
    )


def total_too_long(prompt_tokens: int, output_tokens: int, window_tokens: int) -> BadRequest:
    """As above."""
    return BadRequest(
        f"Requested token count exceeds the model's maximum context length of {window_tokens} tokens. You requested a "
        f"total of {prompt_tokens + output_tokens} tokens: {prompt_tokens} tokens from the input messages and "
        f"{output_tokens} tokens for the completion. Please reduce the number of tokens in the input messages or the "
        "completion to fit within the limit."
    )


def prompt_over_pool(prompt_tokens: int, limit_tokens: int) -> BadRequest:
    """The scheduler's own check (``managers/utils.py``), of what L1 can hold."""
    return BadRequest(
        f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length ({limit_tokens} tokens). Use a "
        "shorter input or enable --allow-auto-truncate."
    )


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")

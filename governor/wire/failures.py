"""Errors on the wire: how each dialect shapes one, and what an engine's own error means.

Only the HTTP status and the structured fields of the engine's error object are looked at, never anything a person or
a model wrote (a conversation may quote an overflow message).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from governor.errors import GovernorError
from governor.wire import sse
from serve.engine import Endpoint

_ANTHROPIC = frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "max_tokens_exceeded"})
_OVERFLOW_WORDS = re.compile(
    r"maximum context length"  # OpenAI, vLLM, SGLang (total)
    r"|longer than the model's context length"  # SGLang, input
    r"|exceeds the maximum allowed length"  # SGLang, scheduler: known to neither Hermes nor OpenClaw
    r"|exceeds the available context size"  # llama.cpp
    r"|(?:input|prompt) is too (?:large|long)",
    re.IGNORECASE,
)


def error_body(endpoint: Endpoint, error: GovernorError) -> bytes:
    """An error as this dialect's clients expect it."""
    if endpoint not in _ANTHROPIC:
        return error.body()
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
            429: "rate_limit_error", 503: "overloaded_error"}.get(error.status)  # fmt: skip
    kind = kind or ("invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})


def error_event(endpoint: Endpoint, error: GovernorError) -> bytes:
    """An error as the last event of a stream that has begun."""
    body = error_body(endpoint, error)
    if not body.startswith(b"{") or b"\n" in body or b"\r" in body:  # an engine's body may be anything
        body = GovernorError.body(error)
    return sse.encode(body, event="error" if endpoint in _ANTHROPIC else None)


def error_object(body: bytes) -> dict[str, Any]:
    """The error object of an engine's error body; a bare message where it has none."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {"message": body[:500].decode(errors="replace")}
    if not isinstance(decoded, dict):
        return {"message": str(decoded)[:500]}
    error = decoded.get("error", decoded)
    return error if isinstance(error, dict) else {"message": str(error)[:500]}


def message_of(error: dict[str, Any]) -> str:
    return str(error.get("message") or error.get("detail") or "no message")[:2000]


def is_overflow(status: int, error: dict[str, Any]) -> bool:
    """Whether an engine's error says that the prompt does not fit."""
    if status not in {400, 413, 422, 500}:
        return False
    if {str(error.get("code")), str(error.get("type"))} & _OVERFLOW_CODES:
        return True
    return status != 500 and bool(_OVERFLOW_WORDS.search(message_of(error)))


def status_of(error: dict[str, Any]) -> int:
    """HTTP status for an error object that came inside a 200 stream."""
    code = error.get("code")
    return code if type(code) is int and 400 <= code <= 599 else 502

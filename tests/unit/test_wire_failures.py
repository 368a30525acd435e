"""Errors on the wire: shapes by dialect, and what an engine's own error means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.errors import (
    BadRequest,
    ContextOverflow,
    GovernorError,
    NotAuthenticated,
    TooManyTurns,
    UpstreamCut,
    UpstreamRefused,
    UpstreamUnavailable,
)
from governor.wire.failures import error_body, error_event, error_object, is_overflow, message_of, status_of
from serve.engine import Endpoint
from serve.scripted.ask import Dialect
from serve.scripted.behaviour import Overflow
from serve.scripted.errors import overflow

_OVERFLOW = ContextOverflow(prompt_tokens=70_000, window_tokens=65_536, reserve_tokens=16)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES])
def test_openai_shape(endpoint: Endpoint) -> None:
    error = json.loads(error_body(endpoint, _OVERFLOW))["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        "messages",
    )
    assert "maximum context length is 65536 tokens" in error["message"]
    assert error["source"] == "governor"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_OVERFLOW, "invalid_request_error"),
        (NotAuthenticated("no"), "authentication_error"),
        (TooManyTurns("no"), "rate_limit_error"),
        (UpstreamUnavailable("no"), "overloaded_error"),
        (UpstreamCut("no"), "api_error"),
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.MESSAGES, Endpoint.COUNT_TOKENS])
def test_anthropic_shape(endpoint: Endpoint, error: GovernorError, kind: str) -> None:
    assert json.loads(error_body(endpoint, error)) == {
        "type": "error",
        "error": {"type": kind, "message": error.message},
    }


def test_error_events() -> None:
    assert error_event(Endpoint.MESSAGES, _OVERFLOW).startswith(b'event: error\ndata: {"type":"error"')
    assert error_event(Endpoint.CHAT, _OVERFLOW).startswith(b'data: {"error":')


@pytest.mark.parametrize("body", [b"<html>no</html>", b'{"error":\n"x"}', b"\x1f\x8b"])
def test_an_engines_odd_body_never_breaks_an_event(body: bytes) -> None:
    refused = UpstreamRefused(500, body, "text/html", "it failed")
    event = error_event(Endpoint.CHAT, refused)
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "it failed"
    assert error_body(Endpoint.CHAT, refused) == body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b"m", "m"),
        (b'"m"', "m"),
        (b"", "no message"),
        (b"{}", "no message"),
        (b"[" * 100_000, "[" * 500),
    ],
)
def test_messages_of_engines(body: bytes, message: str) -> None:
    assert message_of(error_object(body)) == message


@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.MESSAGES])
@pytest.mark.parametrize("output_tokens", [None, 100])
@pytest.mark.parametrize("wording", Overflow)
def test_overflow_of_every_engine(wording: Overflow, output_tokens: int | None, dialect: Dialect) -> None:
    refusal = overflow(dialect, wording, prompt_tokens=70_000, output_tokens=output_tokens, window_tokens=65_536)
    assert is_overflow(refusal.status, error_object(refusal.body))


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (400, {"code": "context_length_exceeded"}, True),
        (400, {"type": "exceed_context_size_error"}, True),
        (500, {"code": "context_length_exceeded"}, True),
        (413, {"message": "The prompt is too long"}, True),
        (500, {"message": "maximum context length"}, False),
        (429, {"message": "maximum context length"}, False),
        (400, {"message": "temperature must not be negative", "param": "maximum context length"}, False),
        (400, {}, False),
    ],
)
def test_overflow_is_told_by_status_and_structured_fields(status: int, error: dict[str, Any], expected: bool) -> None:
    assert is_overflow(status, error) is expected


@pytest.mark.parametrize(
    ("code", "status"), [(503, 503), (404, 404), (200, 502), (600, 502), ("503", 502), (True, 502), (None, 502)]
)
def test_status_of_an_error_in_a_200(code: Any, status: int) -> None:
    assert status_of({"code": code}) == status


def test_wordings_do_not_confuse_clients() -> None:
    assert "rate limit" not in _OVERFLOW.message.lower()
    assert "context" not in TooManyTurns("Too many requests at once").message
    assert isinstance(_OVERFLOW, BadRequest)

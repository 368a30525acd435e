"""Refusals as real engines word them; clients recover by these sentences, so every letter counts.

SGLang 0.5: ``TokenizerManager._validate_one_request`` and the scheduler's own check, flat error body.
vLLM: ``OpenAIServing._validate_input``. OpenAI: its public API. llama.cpp: ``exceed_context_size_error``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from serve.scripted.ask import Dialect
from serve.scripted.behaviour import Behaviour, Overflow


class Refusal(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


_DEFAULT_TEXTS = {
    400: ("BadRequestError", "The request was rejected by the engine."),
    401: ("authentication_error", "Invalid API key."),
    413: ("invalid_request_error", "Request entity too large."),
    429: ("rate_limit_error", "Too many requests, please slow down."),
    500: ("InternalServerError", "The engine failed."),
    503: ("ServiceUnavailableError", "The engine is overloaded, please try again later."),
}

_ANTHROPIC_TYPES = {
    "BadRequestError": "invalid_request_error",
    "InternalServerError": "api_error",
    "ServiceUnavailableError": "overloaded_error",
    "server_error": "api_error",
    "exceed_context_size_error": "invalid_request_error",
}


def error_object(message: str, kind: str, code: str | int | None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": None, "code": code}


def error_body(dialect: Dialect, message: str, kind: str, code: str | int | None) -> bytes:
    """The error envelope of the API that was asked."""
    if dialect is Dialect.MESSAGES:
        error = {"type": _ANTHROPIC_TYPES.get(kind, kind), "message": message}
        return msgspec.json.encode({"type": "error", "error": error})
    return msgspec.json.encode({"error": error_object(message, kind, code)})


def refusal(dialect: Dialect, behaviour: Behaviour) -> Refusal:
    """The error a behaviour with a ``status`` of 400 and more stands for."""
    kind, text = _DEFAULT_TEXTS.get(behaviour.status, ("error", "The engine refused."))
    code = behaviour.status if behaviour.code is None else behaviour.code
    headers: tuple[tuple[str, str], ...] = ()
    if behaviour.retry_after_s is not None:
        headers = (("Retry-After", str(behaviour.retry_after_s)),)
    message = text if behaviour.message is None else behaviour.message
    return Refusal(behaviour.status, error_body(dialect, message, kind, code), headers)


def overflow(
    dialect: Dialect, wording: Overflow, *, prompt_tokens: int, output_tokens: int | None, window_tokens: int
) -> Refusal:
    """A prompt, or a prompt with its output cap, that does not fit the window.

    ``output_tokens`` is the cap when it is the sum that does not fit, ``None`` when the prompt alone is too long.
    """
    body = _OVERFLOWS[wording](prompt_tokens, output_tokens, window_tokens)
    if dialect is not Dialect.MESSAGES:
        return Refusal(400, msgspec.json.encode(body))
    error = body.get("error", body)
    return Refusal(400, error_body(dialect, error["message"], error["type"], None))


def _sglang(prompt: int, output: int | None, window: int) -> dict[str, Any]:
    if output is None:
        message = f"The input ({prompt} tokens) is longer than the model's context length ({window} tokens)."
    else:
        message = (
            f"Requested token count exceeds the model's maximum context length of {window} tokens. You requested a "
            f"total of {prompt + output} tokens: {prompt} tokens from the input messages and {output} tokens for the "
            "completion. Please reduce the number of tokens in the input messages or the completion to fit within "
            "the limit."
        )
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


def _sglang_scheduler(prompt: int, output: int | None, window: int) -> dict[str, Any]:
    message = (
        f"Input length ({prompt} tokens) exceeds the maximum allowed length ({window} tokens). Use a shorter input or "
        "enable --allow-auto-truncate."
    )
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


def _vllm(prompt: int, output: int | None, window: int) -> dict[str, Any]:
    cap = output or 0
    message = (
        f"This model's maximum context length is {window} tokens. However, you requested {cap} output tokens and your "
        f"prompt contains at least {prompt} input tokens, for a total of at least {prompt + cap} tokens. Please "
        "reduce the length of the input prompt or the number of requested output tokens. "
        f"(parameter=input_tokens, value={prompt})"
    )
    return {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}


def _openai(prompt: int, output: int | None, window: int) -> dict[str, Any]:
    if output is None:
        asked = f"your messages resulted in {prompt} tokens. Please reduce the length of the messages."
    else:
        asked = (
            f"you requested {prompt + output} tokens ({prompt} in the messages, {output} in the completion). "
            "Please reduce the length of the messages or completion."
        )
    message = f"This model's maximum context length is {window} tokens. However, {asked}"
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    return {"error": error}


def _llamacpp(prompt: int, output: int | None, window: int) -> dict[str, Any]:
    message = f"request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"
    error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
    return {"error": {**error, "n_prompt_tokens": prompt, "n_ctx": window}}


_OVERFLOWS = {
    Overflow.SGLANG: _sglang,
    Overflow.SGLANG_SCHEDULER: _sglang_scheduler,
    Overflow.VLLM: _vllm,
    Overflow.OPENAI: _openai,
    Overflow.LLAMACPP: _llamacpp,
}

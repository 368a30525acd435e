"""Requests as typed values: the fields that the twin honours; SGLang's other ones are taken and change nothing.

Names and defaults are those of SGLang 0.5.23's ``openai/protocol.py`` and ``managers/io_struct.py``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request

from serve.twin_server.errors import BadRequest, malformed

T = TypeVar("T")
ToolChoice = Literal["auto", "required", "none"]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ChatAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    model: str = "default"
    user: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | dict[str, Any] | None = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    separate_reasoning: bool = True
    input_ids: list[int] | None = None
    """Instead of the rendered messages."""
    rid: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    custom_params: dict[str, Any] | None = None
    """Its ``twin`` says how the answer is to be."""
    return_cached_tokens_details: bool = False
    return_input_ids_in_sglext: bool = False
    return_output_ids_in_sglext: bool = False
    return_prompt_token_ids: bool = False
    return_token_ids: bool = False

    @property
    def cap(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class TextAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/v1/completions``."""

    prompt: str | list[Any]
    """A text, its tokens, or a list of either."""
    model: str = "default"
    user: str | None = None
    max_tokens: int = 16
    n: int = 1
    echo: bool = False
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    rid: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    custom_params: dict[str, Any] | None = None
    return_cached_tokens_details: bool = False
    return_token_ids: bool = False

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``/generate``."""

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    n: int = 1
    custom_params: dict[str, Any] | None = None


class GenerateAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/generate``."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    rid: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    return_prompt_token_ids: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    """-1: none of the prompt's."""
    top_logprobs_num: int = 0


class TokenizeAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/tokenize`` of a text. With ``messages`` it is a :class:`ChatAsk`."""

    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None


class DetokenizeAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/detokenize``."""

    tokens: list[int | list[int]]
    """Of one text, or of several."""
    skip_special_tokens: bool = True


class AbortAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/abort_request``."""

    rid: str = ""
    abort_all: bool = False


def decoded(content: bytes, kind: type[T]) -> T:
    """Raises :class:`BadRequest`, naming the field."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise malformed(f"{error}") from error


async def body_of(request: Request, kind: type[T]) -> T:
    """As :func:`decoded`. The OpenAI routes take nothing but JSON (``validate_json_request``)."""
    return decoded(await request.body(), kind)


def agent_of(request: Request, user: str | None) -> str:
    """Who asks, for a script's rules."""
    return request.headers.get("x-twin-agent") or user or ""


def require_json(request: Request) -> None:
    """Raises :class:`BadRequest`."""
    media_type = request.headers.get("content-type", "").lower().split(";", maxsplit=1)[0]
    if media_type != "application/json":
        raise malformed("Unsupported Media Type: Only 'application/json' is allowed")


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def check_chat(ask: ChatAsk, window_tokens: int) -> None:
    """``serving_chat._validate_request``. Raises :class:`BadRequest`."""
    if not ask.messages:
        raise BadRequest("Messages cannot be empty.")
    names = [_tool_name(tool) for tool in ask.tools or ()]
    if isinstance(ask.tool_choice, dict):
        wanted = _tool_name(ask.tool_choice)
        if not names:
            raise BadRequest("Tools cannot be empty if tool choice is set to a specific tool.")
        if wanted not in names:
            raise BadRequest(f"Tool '{wanted}' not found in tools list.")
    elif ask.tool_choice == "required" and not names:
        raise BadRequest("Tools cannot be empty if tool choice is set to required.")
    if ask.cap is not None and ask.cap > window_tokens:
        raise BadRequest(
            f"max_completion_tokens is too large: {ask.cap}.This model supports at most {window_tokens} completion "
            "tokens."
        )
    if ask.n < 1:
        raise malformed("Expected `int` >= 1 - at `$.n`")


def _tool_name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise malformed("Object missing required field `name` - at `$.tools[...].function`")
    return name

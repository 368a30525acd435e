"""Renders a model's chat template as the engines do, so that what is counted is what the model is given.

Jinja in a sandbox, with the globals and filters of ``transformers`` (``utils/chat_template_utils.py``). A template
comes from a model file and is not trusted: every failure of it is one exception, :class:`TemplateFailed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from governor.tokens.digests import parse_arguments, text_of

Message = dict[str, Any]


class TemplateFailed(Exception):
    """The template cannot be compiled, or refuses this conversation."""


class RenderRules(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine does to messages before its template sees them."""

    arguments_as_values: bool = True
    """Tool-call arguments are parsed, not left as text."""
    part_separator: str = "\n"
    """Put between the text parts of one message where the template takes plain text."""


LLAMA_CPP = RenderRules(part_separator="\n")
"""llama.cpp b11549 joins parts by a newline."""
SGLANG = RenderRules(part_separator=" ")
"""SGLang 0.5.23 joins parts by a space and parses arguments (``serving_chat.py``)."""


class ChatTemplate:
    """A compiled chat template. Pure apart from the date that some templates ask for."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "", rules: RenderRules = LLAMA_CPP) -> None:
        """Raises :class:`TemplateFailed` when ``source`` does not compile."""
        self.source = source
        self._rules = rules
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateFailed(f"chat template does not compile: {error}") from error

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None, *, generation_prompt: bool) -> str:
        """The prompt text. Raises :class:`TemplateFailed` when the template refuses or fails on these messages."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=generation_prompt,
                **self._tokens,
            )
        except Exception as error:
            raise TemplateFailed(f"chat template: {type(error).__name__}: {error}") from error

    def prepare(self, fields: Mapping[str, Any]) -> Message:
        """A message as the template expects it: text content, tool-call arguments as values."""
        message = dict(fields)
        content = message.get("content")
        if isinstance(content, list):
            texts = (text_of([part]) for part in content)
            message["content"] = self._rules.part_separator.join(text for text in texts if text)
        elif content is None:
            message["content"] = ""
        calls = message.get("tool_calls")
        if self._rules.arguments_as_values and isinstance(calls, list):
            message["tool_calls"] = [_with_arguments(call) for call in calls]
        return message


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return {**call, "function": {**function, "arguments": parse_arguments(function.get("arguments"))}}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)

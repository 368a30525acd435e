"""What a generation request asks for, in one shape for all four APIs.

Reads only what the scripted engine acts on. Written independently of the gateway's own parser, because the engine
is the yardstick that parser is tested against.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class BadAsk(ValueError):
    """The body is not a request of its API."""


class Dialect(StrEnum):
    """The API of a request; the value is its path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class CallKind(StrEnum):
    """Whose call a request is, as Hermes 0.19.0, OpenClaw 2026.9.6 and the governor send them."""

    AGENT = "agent"
    TITLE = "title"
    COMPACTION = "compaction"
    REVIEW = "review"
    """Hermes's background review, OpenClaw's skill review."""
    MEMORY_FLUSH = "memory_flush"
    SUMMARY = "summary"
    """A gateway's own, of a history that it is about to make shorter."""


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    text: str = ""
    reasoning: str | None = None
    """``None`` when the field is absent, which differs from empty."""
    calls: tuple[ToolCall, ...] = ()
    answers_call: str | None = None
    has_data_url: bool = False

    def render(self) -> str:
        calls = "".join(f"<|call|>{call.name}\n{call.arguments}" for call in self.calls)
        reasoning = f"<|think|>{self.reasoning}<|/think|>" if self.reasoning else ""
        return f"<|{self.role}|>\n{reasoning}{self.text}{calls}<|end|>\n"


GENERATION_PROMPT = "<|assistant|>\n"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    dialect: Dialect
    model: str
    messages: tuple[Message, ...]
    tools_text: str = ""
    has_tools: bool = False
    stream: bool = False
    wants_usage: bool = False
    """A usage chunk was asked for (always true where the API reports usage by itself)."""
    max_tokens: int | None = None
    choices: int = 1
    user: str = ""

    def prompt(self) -> str:
        """The rendered prompt: what is counted and cached."""
        if self.dialect is Dialect.COMPLETIONS:
            return "".join(message.text for message in self.messages)
        tools = f"<|tools|>{self.tools_text}<|end|>\n" if self.tools_text else ""
        return tools + "".join(message.render() for message in self.messages) + GENERATION_PROMPT

    def kind(self) -> CallKind:
        """Recognised by the same marks a person would look for in a recording."""
        opening = self.messages[0].text if self.messages else ""
        if opening.startswith("Generate a short, descriptive title"):
            return CallKind.TITLE
        if opening.startswith(("You are a summarization agent", "You are a context summarization assistant")):
            return CallKind.COMPACTION
        last_two = [message.text for message in self.messages if message.role == "user"][-2:]
        if any("Pre-compaction memory flush." in text for text in last_two):
            return CallKind.MEMORY_FLUSH
        if any(
            text.startswith("Review the conversation above and") or "Skill review. Distill new" in text
            for text in last_two
        ):
            return CallKind.REVIEW
        if last_two and "Write that summary now" in last_two[-1]:
            return CallKind.SUMMARY
        return CallKind.AGENT


def parse_ask(dialect: Dialect, body: bytes) -> Ask:
    """Raises :class:`BadAsk` with a reason for a person."""
    try:
        raw = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise BadAsk(f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadAsk("the body is not a JSON object")
    try:
        return _PARSERS[dialect](raw)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadAsk(f"{type(error).__name__}: {error}") from error


def _chat(raw: Mapping[str, Any]) -> Ask:
    cap = raw.get("max_completion_tokens")
    options = raw.get("stream_options") or {}
    return _ask(
        Dialect.CHAT,
        raw,
        messages=[_chat_message(item) for item in raw["messages"]],
        wants_usage=not raw.get("stream") or bool(options.get("include_usage")),
        max_tokens=raw.get("max_tokens") if cap is None else cap,
    )


def _completions(raw: Mapping[str, Any]) -> Ask:
    options = raw.get("stream_options") or {}
    prompt = raw["prompt"]
    return _ask(
        Dialect.COMPLETIONS,
        raw,
        messages=[Message(role="user", text=prompt if isinstance(prompt, str) else "".join(map(str, prompt)))],
        wants_usage=not raw.get("stream") or bool(options.get("include_usage")),
        max_tokens=raw.get("max_tokens"),
    )


def _responses(raw: Mapping[str, Any]) -> Ask:
    messages = [Message(role="system", text=raw["instructions"])] if raw.get("instructions") else []
    items = raw.get("input", raw.get("messages"))
    if isinstance(items, str):
        messages.append(Message(role="user", text=items))
    else:
        messages += [_responses_item(item) for item in items or ()]
    return _ask(Dialect.RESPONSES, raw, messages=messages, max_tokens=raw.get("max_output_tokens"))


def _messages(raw: Mapping[str, Any]) -> Ask:
    system, _ = _text_of(raw.get("system"))
    messages = [Message(role="system", text=system)] if system else []
    for item in raw["messages"]:
        messages += _anthropic_message(item)
    return _ask(Dialect.MESSAGES, raw, messages=messages, max_tokens=raw.get("max_tokens"))


_PARSERS = {
    Dialect.CHAT: _chat,
    Dialect.COMPLETIONS: _completions,
    Dialect.RESPONSES: _responses,
    Dialect.MESSAGES: _messages,
}


def _ask(
    dialect: Dialect,
    raw: Mapping[str, Any],
    *,
    messages: list[Message],
    max_tokens: object,
    wants_usage: bool = True,
) -> Ask:
    tools = raw.get("tools") or []
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise BadAsk(f"the output cap must be a positive integer, got {max_tokens!r}")
    return Ask(
        dialect=dialect,
        model=str(raw.get("model", "")),
        messages=tuple(messages),
        tools_text=msgspec.json.encode(tools).decode() if tools else "",
        has_tools=bool(tools) and raw.get("tool_choice") != "none",
        stream=raw.get("stream") is True,
        wants_usage=wants_usage,
        max_tokens=max_tokens,
        choices=int(raw.get("n") or 1),
        user=str(raw.get("user") or ""),
    )


def _text_of(content: Any) -> tuple[str, bool]:
    """Joined text of a content field, and whether an image travels in it as a data URL."""
    if content is None:
        return "", False
    if isinstance(content, str):
        return content, False
    texts: list[str] = []
    has_data_url = False
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        texts.append(str(part.get("text") or ""))
        image = part.get("image_url")
        url = image.get("url", "") if isinstance(image, Mapping) else str(image or "")
        has_data_url = has_data_url or url.startswith("data:")
        if url:
            texts.append(url)
    return "".join(texts), has_data_url


def _chat_message(item: Mapping[str, Any]) -> Message:
    text, has_data_url = _text_of(item.get("content"))
    reasoning = item.get("reasoning_content", item.get("reasoning"))
    calls = tuple(
        ToolCall(str(call.get("id", "")), str(call["function"]["name"]), str(call["function"].get("arguments", "")))
        for call in item.get("tool_calls") or ()
    )
    return Message(
        role=str(item["role"]),
        text=text,
        reasoning=None if reasoning is None else str(reasoning),
        calls=calls,
        answers_call=item.get("tool_call_id"),
        has_data_url=has_data_url,
    )


def _responses_item(item: Mapping[str, Any]) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        call = ToolCall(str(item["call_id"]), str(item["name"]), str(item["arguments"]))
        return Message(role="assistant", calls=(call,))
    if kind == "function_call_output":
        text, _ = _text_of(item["output"])
        return Message(role="tool", text=text, answers_call=str(item["call_id"]))
    if kind == "reasoning":
        text, _ = _text_of(item.get("content") or item.get("summary"))
        return Message(role="assistant", reasoning=text)
    text, has_data_url = _text_of(item.get("content"))
    return Message(role=str(item["role"]), text=text, has_data_url=has_data_url)


def _anthropic_message(item: Mapping[str, Any]) -> list[Message]:
    content = item["content"]
    if isinstance(content, str):
        return [Message(role=str(item["role"]), text=content)]
    results = [
        Message(role="tool", text=_text_of(block.get("content"))[0], answers_call=str(block["tool_use_id"]))
        for block in content
        if block.get("type") == "tool_result"
    ]
    rest = [block for block in content if block.get("type") != "tool_result"]
    if not rest:
        return results
    thinking = [str(block.get("thinking", "")) for block in rest if block.get("type") == "thinking"]
    calls = tuple(
        ToolCall(str(block["id"]), str(block["name"]), msgspec.json.encode(block["input"]).decode())
        for block in rest
        if block.get("type") == "tool_use"
    )
    text, has_data_url = _text_of([block for block in rest if block.get("type") in ("text", "image")])
    message = Message(
        role=str(item["role"]),
        text=text,
        reasoning="".join(thinking) if thinking else None,
        calls=calls,
        has_data_url=has_data_url,
    )
    return [*results, message]

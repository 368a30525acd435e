"""Reading an answer alongside its relay: usage, finish, errors, how much text. Nothing here changes a byte.

One reader a dialect. A reader is fed the data of each event (or the whole body of a plain answer) and tells what the
event was; it never raises on odd input, it counts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

import msgspec

from governor.types import Usage
from governor.wire.tiers import tiers_of
from governor.wire.usage import WireUsage, merged, to_usage
from serve.engine import Endpoint


class Seen(Enum):
    """What an event turned out to be."""

    CONTENT = auto()
    """Carries generated text, reasoning or a piece of a tool call."""
    OTHER = auto()
    """Part of the protocol: a role, a finish, a ping."""
    USAGE_ONLY = auto()
    """Only the usage report that ``include_usage`` asks for."""
    TIERS = auto()
    """Carries the split of cached tokens by tier, and neither text nor usage."""
    ERROR = auto()
    DONE = auto()
    """The stream's own good end."""
    JUNK = auto()
    """Empty or unreadable: dropped and counted, since clients die of it."""


class Answer(msgspec.Struct):
    """What is known of an answer so far."""

    usage: Usage = Usage()
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    """The engine's own error object, if it sent one."""
    done: bool = False
    text_bytes: int = 0
    reasoning_bytes: int = 0
    tool_bytes: int = 0
    tool: str = ""
    """Name of the last tool that it calls."""
    content_events: int = 0
    junk_events: int = 0

    @property
    def ended_well(self) -> bool:
        """It said how it finished, or wrote something and closed the stream in the dialect's way; and no error came."""
        if self.error is not None or self.aborted:
            return False
        return self.finish_reason is not None or (self.done and self.generated_bytes > 0)

    @property
    def aborted(self) -> bool:
        """The engine gave up on the answer by itself (SGLang, when a request waited too long inside it)."""
        return self.finish_reason == "abort"

    @property
    def truncated(self) -> bool:
        return self.finish_reason in {"length", "max_tokens", "max_output_tokens"}

    @property
    def lost_to_reasoning(self) -> bool:
        """Cut at its cap while still thinking: no visible text and no tool call came."""
        return self.truncated and self.reasoning_bytes > 0 and not self.text_bytes and not self.tool_bytes

    @property
    def generated_bytes(self) -> int:
        return self.text_bytes + self.reasoning_bytes + self.tool_bytes


class PlainDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class PlainChoice(msgspec.Struct):
    delta: PlainDelta
    index: int = 0
    finish_reason: str | None = None
    text: None = None
    message: None = None


class _PlainChunk(msgspec.Struct):
    """Of a streamed chat of one choice, as nearly all chunks are. Everything else is read as a :class:`_Chunk`."""

    choices: tuple[PlainChoice]
    usage: None = None
    sglext: None = None
    error: None = None


class _Chunk(msgspec.Struct):
    choices: Any = None
    usage: WireUsage | None = None
    sglext: Any = None
    error: Any = None


_PLAIN = msgspec.json.Decoder(_PlainChunk)
_CHUNK = msgspec.json.Decoder(_Chunk)
_ANY = msgspec.json.Decoder()
_LONGEST_TOOL = 64
"""Characters; OpenAI's own bound."""


def _size(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return len(value) if value.isascii() else len(value.encode(errors="replace"))


def _error_object(error: Any) -> dict[str, Any]:
    return error if isinstance(error, dict) else {"message": str(error)}


class ChatReader:
    """Chat and text completions, streamed or whole. ``text``, ``delta`` and ``message`` are all understood."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._usage_of_choice: dict[int, Usage] = {}

    def on_data(self, data: bytes) -> Seen:
        """One event's data, or a whole plain answer."""
        answer = self.answer
        if data == b"[DONE]":
            answer.done = True
            return Seen.DONE
        try:
            plain = _PLAIN.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._on_other(data)
        before = answer.generated_bytes
        self._on_plain(plain.choices[0])
        return self._seen_since(before)

    def _seen_since(self, generated_bytes: int) -> Seen:
        if self.answer.generated_bytes == generated_bytes:
            return Seen.OTHER
        self.answer.content_events += 1
        return Seen.CONTENT

    def _on_other(self, data: bytes) -> Seen:
        answer = self.answer
        try:
            chunk = _CHUNK.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            answer.junk_events += 1
            return Seen.JUNK
        if chunk.error:
            answer.error = _error_object(chunk.error)
            return Seen.ERROR
        tiers = tiers_of(chunk.sglext)
        if chunk.usage is not None or tiers is not None:
            self._on_usage(to_usage(chunk.usage or WireUsage(), tiers), chunk.choices)
        if not chunk.choices:
            if chunk.usage is not None:
                return Seen.USAGE_ONLY
            return Seen.OTHER if tiers is None else Seen.TIERS
        before = answer.generated_bytes
        for choice in chunk.choices if isinstance(chunk.choices, list) else ():
            if isinstance(choice, dict):
                self._on_choice(choice)
        return self._seen_since(before)

    def _on_usage(self, usage: Usage, choices: Any) -> None:
        """Reports are cumulative, so the last one counts. One beside a single choice is about that choice: with
        ``n`` > 1 and ``continuous_usage_stats``, vLLM and SGLang report each choice by itself until the last."""
        match choices:
            case [{"index": int(index)}]:
                self._usage_of_choice[index] = merged(self._usage_of_choice.get(index, Usage()), usage)
                usage = msgspec.structs.replace(
                    usage,
                    completion_tokens=_sum(each.completion_tokens for each in self._usage_of_choice.values()),
                    reasoning_tokens=_sum(each.reasoning_tokens for each in self._usage_of_choice.values()),
                )
        self.answer.usage = merged(self.answer.usage, usage)

    def _on_plain(self, choice: PlainChoice) -> None:
        answer, delta = self.answer, choice.delta
        if choice.finish_reason is not None:
            self._on_finish(choice.finish_reason)
        if delta.content:
            answer.text_bytes += _size(delta.content)
        if delta.reasoning_content or delta.reasoning:
            answer.reasoning_bytes += _size(delta.reasoning_content or delta.reasoning)
        if delta.tool_calls:
            self._on_calls(delta.tool_calls)

    def _on_finish(self, finish: Any) -> None:
        if isinstance(finish, str) and self.answer.finish_reason != "length":
            self.answer.finish_reason = finish  # with several choices, one cut answer makes the turn a cut one

    def _on_choice(self, choice: dict[str, Any]) -> None:
        answer = self.answer
        self._on_finish(choice.get("finish_reason"))
        answer.text_bytes += _size(choice.get("text"))
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return
        answer.text_bytes += _content_size(delta.get("content"))
        answer.reasoning_bytes += _size(delta.get("reasoning_content") or delta.get("reasoning"))
        self._on_calls(delta.get("tool_calls") or ())

    def _on_calls(self, calls: Iterable[Any]) -> None:
        answer = self.answer
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                answer.tool_bytes += _size(function.get("name")) + _size(function.get("arguments"))
                answer.tool = _name(function) or answer.tool


def _name(called: dict[str, Any]) -> str:
    """Of a tool; cut, since a model may write anything there."""
    name = called.get("name")
    return name[:_LONGEST_TOOL] if isinstance(name, str) else ""


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _content_size(content: Any) -> int:
    if isinstance(content, list):
        return sum(_size(part.get("text")) for part in content if isinstance(part, dict))
    return _size(content)


class _NamedReader(ABC):
    """Dialects whose events carry their own ``type``."""

    def __init__(self) -> None:
        self.answer = Answer()

    def on_data(self, data: bytes) -> Seen:
        if data == b"[DONE]":
            return Seen.DONE
        try:
            event = _ANY.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self.answer.junk_events += 1
            return Seen.JUNK
        if event.get("error") and event.get("type") in (None, "error", "response.failed"):
            self.answer.error = _error_object(event["error"])
            return Seen.ERROR
        before = self.answer.generated_bytes
        seen = self._on_event(event)
        if self.answer.generated_bytes > before:
            self.answer.content_events += 1
            return Seen.CONTENT
        return seen

    @abstractmethod
    def _on_event(self, event: dict[str, Any]) -> Seen:
        """Take one event of the dialect."""

    def _on_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            wire = WireUsage(**{key: value for key, value in usage.items() if key in WireUsage.__struct_fields__})
            self.answer.usage = merged(self.answer.usage, to_usage(wire))


class MessagesReader(_NamedReader):
    """Anthropic's Messages dialect."""

    def _on_event(self, event: dict[str, Any]) -> Seen:
        answer = self.answer
        match event.get("type"):
            case "message":  # a whole plain answer
                self._on_message(event)
                for block in event.get("content") or ():
                    self._on_block(block)
                answer.done = True
            case None if "input_tokens" in event:  # the answer of count_tokens
                self._on_usage(event)
                answer.finish_reason = "counted"
            case "message_start":
                self._on_start(event.get("message"))
            case "content_block_start":
                self._on_block(event.get("content_block"))
            case "content_block_delta":
                self._on_block(event.get("delta"))
            case "message_delta":
                self._on_message(event.get("delta"))
                self._on_usage(event.get("usage"))
            case "message_stop":
                answer.done = True
                return Seen.DONE
        return Seen.OTHER

    def _on_start(self, message: Any) -> None:
        """Its ``output_tokens`` stands for nothing yet; were it kept, an answer broken off would look counted."""
        usage = message.get("usage") if isinstance(message, dict) else None
        if isinstance(usage, dict):
            self._on_usage({key: value for key, value in usage.items() if key != "output_tokens"})

    def _on_message(self, message: Any) -> None:
        if isinstance(message, dict):
            self._on_usage(message.get("usage"))
            stop = message.get("stop_reason")
            self.answer.finish_reason = stop if isinstance(stop, str) else self.answer.finish_reason

    def _on_block(self, block: Any) -> None:
        if not isinstance(block, dict):
            return
        self.answer.text_bytes += _size(block.get("text"))
        self.answer.reasoning_bytes += _size(block.get("thinking"))
        self.answer.tool_bytes += _size(block.get("name")) + _size(block.get("partial_json"))
        self.answer.tool = _name(block) or self.answer.tool
        if block.get("type") == "tool_use" and block.get("input"):
            self.answer.tool_bytes += len(msgspec.json.encode(block["input"]))


class ResponsesReader(_NamedReader):
    """OpenAI's Responses dialect."""

    def _on_event(self, event: dict[str, Any]) -> Seen:
        answer = self.answer
        kind = event.get("type") or event.get("object")
        match kind:
            case "response":  # a whole plain answer
                self._on_response(event)
            case "response.output_text.delta":
                answer.text_bytes += _size(event.get("delta"))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                answer.reasoning_bytes += _size(event.get("delta"))
            case "response.output_item.added":
                self._on_item(event.get("item"))
            case "response.function_call_arguments.delta":
                answer.tool_bytes += _size(event.get("delta"))
            case "response.completed" | "response.incomplete":
                self._on_response(event.get("response"), count_output=False)
                answer.done = True
                return Seen.DONE
            case "response.failed":
                failed = event.get("response")
                error = failed.get("error") if isinstance(failed, dict) else None
                answer.error = _error_object(error or {"message": "the response failed"})
                return Seen.ERROR
        return Seen.OTHER

    def _on_response(self, response: Any, count_output: bool = True) -> None:
        if not isinstance(response, dict):
            return
        self._on_usage(response.get("usage"))
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        status = response.get("status")
        finish = reason or ("stop" if status == "completed" else status)
        self.answer.finish_reason = finish if isinstance(finish, str) else self.answer.finish_reason
        for item in (response.get("output") or ()) if count_output else ():
            if isinstance(item, dict):
                field = "reasoning_bytes" if item.get("type") == "reasoning" else "text_bytes"
                setattr(self.answer, field, getattr(self.answer, field) + _content_size(item.get("content")))
                self.answer.tool_bytes += _size(item.get("arguments"))
                self._on_item(item)

    def _on_item(self, item: Any) -> None:
        if isinstance(item, dict) and item.get("type") == "function_call":
            self.answer.tool = _name(item) or self.answer.tool


Reader = ChatReader | MessagesReader | ResponsesReader


def reader_for(endpoint: Endpoint) -> Reader:
    match endpoint:
        case Endpoint.MESSAGES | Endpoint.COUNT_TOKENS:
            return MessagesReader()
        case Endpoint.RESPONSES:
            return ResponsesReader()
        case _:
            return ChatReader()

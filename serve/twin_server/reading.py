"""What of a generation is told so far, as a chat's parts or as plain text. Pure."""

from __future__ import annotations

from typing import Any

from serve.twin_server.answers import reasoning_tokens
from serve.twin_server.generation import Generation, Plan
from serve.twin_server.parse import AnswerParser, CallArguments, CallStarted, Delta, Parsed, Reasoning, Text, gather
from serve.twin_server.pieces import decode
from serve.twin_server.wire_chat import ChatStream, tool_call


class ChatReader:
    """Of one choice."""

    def __init__(self, plan: Plan, *, separate_reasoning: bool) -> None:
        self._ids = plan.answer.ids
        self._parser = AnswerParser(
            plan.answer, plan.offer, in_reasoning=plan.thinks, separate_reasoning=separate_reasoning
        )
        self._seen_tokens = 0
        self._calls = 0
        self.was_read = False

    def read(self, written_tokens: int) -> list[Delta]:
        """What is new."""
        self.was_read = True
        deltas = self._parser.feed(self._ids[self._seen_tokens : written_tokens])
        self._seen_tokens = written_tokens
        self._calls += sum(isinstance(delta, CallStarted) for delta in deltas)
        return deltas

    def finish_reason(self, reason: str) -> str:
        """A model that stops after its calls has called."""
        return "tool_calls" if reason == "stop" and self._calls else reason


def chunk_of(delta: Delta, stream: ChatStream, index: int, usage: dict[str, Any] | None) -> bytes:
    """A delta as a chunk of a stream."""
    match delta:
        case Reasoning(text):
            return stream.reasoning(index, text, usage)
        case Text(text):
            return stream.content(index, text, usage)
        case CallStarted(number, call_id, name):
            return stream.call(index, tool_call(number, call_id, name, ""), usage)
        case CallArguments(number, json):
            return stream.call(index, tool_call(number, None, None, json), usage)


def whole_calls(parsed: Parsed) -> list[dict[str, Any]] | None:
    """The calls of a whole answer; ``None`` without any."""
    calls = [tool_call(number, call.id, call.name, call.arguments) for number, call in enumerate(parsed.calls)]
    return calls or None


def whole_chat(reader: ChatReader, generation: Generation) -> Parsed:
    """All of a generation that is over."""
    return gather(reader.read(generation.written_tokens))


def thought_tokens(generation: Generation) -> int:
    """Those that were written in the thinking phase."""
    if not generation.plan.thinks:
        return 0
    return reasoning_tokens(generation.plan.answer.ids[: generation.written_tokens])


class TextReader:
    """Plain text, without special tokens; what stands behind a text to stop at is not told."""

    def __init__(self, plan: Plan, *, echoed: bool = False) -> None:
        self._ids = plan.answer.ids
        self._room = plan.answer.visible_chars
        self._before = decode(plan.prompt_ids) if echoed else ""
        self.seen_tokens = 0

    def read(self, written_tokens: int) -> str:
        """What is new."""
        text = decode(self._ids[self.seen_tokens : written_tokens], skip_special_tokens=True)[: self._room]
        self._room -= len(text)
        self.seen_tokens = written_tokens
        before, self._before = self._before, ""
        return before + text

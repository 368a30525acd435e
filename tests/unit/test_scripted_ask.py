"""One shape for the requests of four APIs, and whose call a request is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serve.scripted.ask import Ask, BadAsk, CallKind, Dialect, ToolCall, parse_ask


def _parse(dialect: Dialect, **fields: Any) -> Ask:
    return parse_ask(dialect, msgspec.json.encode({"model": "m", **fields}))


def _chat(*messages: dict[str, Any], **fields: Any) -> Ask:
    return _parse(Dialect.CHAT, messages=list(messages), **fields)


def test_chat_request() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}
    ask = _chat(
        {"role": "user", "content": [{"type": "text", "text": "look"}, _image("data:image/png;base64,AA")]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        stream=True,
        max_tokens=5,
        max_completion_tokens=7,
        n=2,
    )
    assert ask.messages[0].has_data_url
    assert ask.messages[1].calls == (ToolCall("c1", "ls", '{"a": 1}'),)
    assert ask.messages[1].reasoning == "hm"
    assert ask.messages[2].answers_call == "c1"
    assert (ask.stream, ask.wants_usage, ask.max_tokens, ask.choices) == (True, False, 7, 2)


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_a_longer_history_continues_the_rendered_prompt() -> None:
    first = _chat({"role": "user", "content": "hi"})
    second = _chat(
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go"}
    )
    assert second.prompt().startswith(first.prompt() + "yes")


def test_messages_request() -> None:
    ask = _parse(
        Dialect.MESSAGES,
        max_tokens=9,
        system=[{"type": "text", "text": "be brief"}],
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}, _text("and")]},
        ],
    )
    assert [message.role for message in ask.messages] == ["system", "user", "assistant", "tool", "user"]
    assert ask.messages[2].calls == (ToolCall("t", "ls", "{}"),)
    assert ask.wants_usage


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_responses_request() -> None:
    ask = _parse(
        Dialect.RESPONSES,
        instructions="be brief",
        max_output_tokens=9,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "t", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t", "output": "x"},
        ],
    )
    assert [message.text for message in ask.messages] == ["be brief", "hi", "", "x"]
    assert ask.max_tokens == 9


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([("system", "You are Hermes Agent"), ("user", "hi")], CallKind.AGENT),
        ([("system", "Generate a short, descriptive title (3-7 words) for"), ("user", "hi")], CallKind.TITLE),
        ([("user", "You are a summarization agent creating a context checkpoint.")], CallKind.COMPACTION),
        ([("system", "You are a context summarization assistant. Your"), ("user", "x")], CallKind.COMPACTION),
        ([("user", "hi"), ("user", "Review the conversation above and update the skill library.")], CallKind.REVIEW),
        ([("user", "[date] Skill review. Distill new durable learning"), ("user", "<<<carrier>>>")], CallKind.REVIEW),
        ([("user", "Pre-compaction memory flush. Store"), ("user", "<<<carrier>>>")], CallKind.MEMORY_FLUSH),
        ([("user", "Review the conversation above and"), ("user", "a"), ("user", "b")], CallKind.AGENT),
    ],
)
def test_kinds_of_calls(messages: list[tuple[str, str]], kind: CallKind) -> None:
    assert _chat(*({"role": role, "content": text} for role, text in messages)).kind() is kind


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"messages": [{}]}', b'{"messages": [], "max_tokens": 0}'])
def test_bad_requests(body: bytes) -> None:
    with pytest.raises(BadAsk):
        parse_ask(Dialect.CHAT, body)

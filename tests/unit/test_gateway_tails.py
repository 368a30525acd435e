"""The tokens behind an answer, under templates of several kinds. A token here is a character; markers are one, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from governor.gateway.tails import Tails
from governor.output.history import Asked, asked
from governor.tokens.digests import digest_message
from governor.types import AgentName
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint, EngineCall, TokenIds

END, BEGIN = "\ue000", "\ue001"
"""Markers: special tokens, which no text shows."""
Template = Callable[[list[dict[str, Any]], list[Any]], str]


def chatml(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    """As Qwen3: thinking of answers before the last question is dropped, an answer at the end has some."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    turns = [f"{BEGIN}tools {json.dumps(tools)}{END}\n"] if tools else []
    for index, message in enumerate(messages):
        said = message.get("content") or ""
        if message["role"] == "assistant":
            thought = message.get("reasoning_content") or ""
            if index > last and (thought or index == len(messages) - 1):
                said = f"<think>{thought}</think>{said}"
            said += "".join(f"<call>{json.dumps(call['function'])}" for call in message.get("tool_calls") or ())
        turns.append(f"{BEGIN}{message['role']}\n{said}{END}\n")
    return "".join(turns) + f"{BEGIN}assistant\n<think>"


def tools_last(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    """As Mistral: the tools stand before the last question."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    shown = f"[TOOLS]{json.dumps(tools)}" if tools else ""
    turns = [
        (shown if index == last else "") + f"{BEGIN}{message.get('content') or ''}{END}"
        for index, message in enumerate(messages)
    ]
    return "".join(turns)


def unmarked(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    """Turns end with a line break, which may be one token with what stands before it."""
    return "".join(f"{message['role']}: {message.get('content') or ''}\n" for message in messages) + "assistant: "


def calls_only(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    """As Llama 3.1: an answer that calls shows its call alone."""
    turns = []
    for message in messages:
        said = message.get("content") or ""
        for call in message.get("tool_calls") or ():
            said = json.dumps(call["function"])
        turns.append(f"{BEGIN}{message['role']}\n{said}{END}")
    return "".join(turns) + f"{BEGIN}assistant\n"


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


class Rendering:
    """The part of an engine that renders; counts what it is asked."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.rendered: list[int] = []

    async def prompt_ids(self, body: bytes) -> tuple[int, ...]:
        asked = msgspec.json.decode(body)
        tokens = ids(self._template(asked["messages"], asked.get("tools") or []))
        self.rendered.append(len(tokens))
        return tokens

    async def texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(map(chr, each)).replace(END, "").replace(BEGIN, "") for each in ids]

    def first(self, call: EngineCall) -> EngineCall:
        raise NotImplementedError

    def ids_in(self, event: bytes, data: bytes) -> TokenIds | None:
        raise NotImplementedError

    def again(self, call: EngineCall) -> EngineCall:
        raise NotImplementedError

    def next(self, call: EngineCall, ids: TokenIds, *, thinking: bool) -> EngineCall:
        raise NotImplementedError

    async def abort(self, call: EngineCall) -> None:
        raise NotImplementedError

    async def tokens_of(self, text: str) -> tuple[int, ...]:
        raise NotImplementedError

    async def thinking_end(self) -> tuple[int, ...]:
        raise NotImplementedError


QUESTION = {"role": "user", "content": "What is the weather in Oslo, and what in Rome?" * 5}
PLAIN = {"role": "assistant", "content": "It is dry.", "reasoning_content": "Easy."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
CALLS = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL | {"id": "c2"}]}
RESULT = {"role": "tool", "content": "dry", "tool_call_id": "c1"}
AGAIN = {"role": "user", "content": "And now?"}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def request_of(*messages: dict[str, Any], **fields: Any) -> tuple[GenerationRequest, Asked]:
    body = {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, QUESTION, *messages]}
    request = parse(Endpoint.CHAT, msgspec.json.encode(body | {"tools": TOOLS} | fields))
    this = asked(AgentName("alice"), request, [digest_message(raw) for raw in request.messages])
    assert this is not None
    return request, this


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([PLAIN, AGAIN], f"\n{BEGIN}user\nAnd now?{END}\n{BEGIN}assistant\n<think>"),
        ([CALLS, RESULT], f"\n{BEGIN}tool\ndry{END}\n{BEGIN}assistant\n<think>"),
        ([CALLS, RESULT, AGAIN], f"\n{BEGIN}tool\ndry{END}\n{BEGIN}user\nAnd now?{END}\n{BEGIN}assistant\n<think>"),
    ],
    ids=["question", "result", "both"],
)
async def test_it_is_what_the_whole_prompt_ends_with(messages: list[dict[str, Any]], wanted: str) -> None:
    engine = Rendering(chatml)
    request, this = request_of(*messages)
    assert await Tails().tail(engine, request, this, ord(END)) == ids(wanted)


async def test_an_answer_that_was_cut_off_is_ended() -> None:
    request, this = request_of(PLAIN, AGAIN)
    tail = await Tails().tail(Rendering(chatml), request, this, None)
    assert tail == ids(f"{END}\n{BEGIN}user\nAnd now?{END}\n{BEGIN}assistant\n<think>")


async def test_the_whole_is_rendered_once_for_each_form() -> None:
    engine, tails = Rendering(chatml), Tails()
    small = 0
    for number in range(3):
        request, this = request_of(CALLS, *[RESULT] * (2 + number))
        assert await tails.tail(engine, request, this, ord(END)) is not None
        small = max(small, *engine.rendered[:2])
    assert len(engine.rendered) == 7
    assert [tokens for tokens in engine.rendered if tokens > len(ids(QUESTION["content"]))] == [engine.rendered[2]]
    request, this = request_of(CALLS, RESULT, AGAIN)
    await tails.tail(engine, request, this, ord(END))
    assert len(engine.rendered) == 10
    tails.clear()
    await tails.tail(engine, request, this, ord(END))
    assert len(engine.rendered) == 13


@pytest.mark.parametrize(
    ("template", "end", "messages"),
    [
        (tools_last, END, [PLAIN, AGAIN]),
        (unmarked, None, [PLAIN, AGAIN]),
        (chatml, "x", [PLAIN, AGAIN]),
    ],
    ids=["tools move", "no marker", "another end"],
)
async def test_a_template_that_does_otherwise_is_found_out(
    template: Template, end: str | None, messages: list[dict[str, Any]]
) -> None:
    request, this = request_of(*messages)
    engine, tails = Rendering(template), Tails()
    for _ in range(2):
        assert await tails.tail(engine, request, this, ord(end) if end else None) is None


async def test_what_is_known_not_to_work_is_not_asked_again() -> None:
    request, this = request_of(PLAIN, AGAIN)
    engine, tails = Rendering(tools_last), Tails()
    await tails.tail(engine, request, this, ord(END))
    asked_before = len(engine.rendered)
    await tails.tail(engine, request, this, ord(END))
    assert len(engine.rendered) == asked_before


async def test_a_template_that_shows_calls_alone() -> None:
    request, this = request_of(CALLS, RESULT)
    tail = await Tails().tail(Rendering(calls_only), request, this, ord(END))
    assert tail == ids(f"{BEGIN}tool\ndry{END}{BEGIN}assistant\n")

"""By what an answer is found again, which answers are kept, and when a conversation does not go on from one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from governor.output.history import Asked, HistoryBook, Kept, asked, kept_of, why_not
from governor.tokens.digests import digest_message
from governor.types import AgentName
from governor.wire.request import parse
from serve.engine import Endpoint, TokenIds
from tests.conversing import CARRIER, Hermes, Message, OpenClaw

ANSWER = {"role": "assistant", "content": "Hello. ", "reasoning_content": "Greet."}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def found(messages: list[Message], agent: str = "alice", **fields: Any) -> Asked:
    it = read(messages, agent, **fields)
    assert it is not None
    return it


def read(messages: list[Message], agent: str = "alice", **fields: Any) -> Asked | None:
    body = msgspec.json.encode({"model": "m", "messages": messages} | fields)
    request = parse(Endpoint.CHAT, body)
    return asked(AgentName(agent), request, [digest_message(raw) for raw in request.messages])


def begun(client: type[Hermes | OpenClaw] = Hermes) -> Hermes | OpenClaw:
    it = client("Be kind.")
    it.ask("Hi!")
    return it


@pytest.mark.parametrize("client", [Hermes, OpenClaw])
def test_an_answer_is_found_by_what_was_sent_before_it(client: type[Hermes | OpenClaw]) -> None:
    talk = begun(client)
    first = found(talk.messages)
    assert first.answered is None
    for question in ("And now?", "And then?"):
        talk.on_answer(ANSWER)
        talk.ask(question)
        second = found(talk.messages, max_tokens=7, stream=True, temperature=0.3, prompt_cache_key="k")
        assert second.answered == first.key
        assert talk.messages[second.answer_at]["role"] == "assistant"
        first = second
    assert bool(first.carrier_tokens) == (client is OpenClaw)


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": "bob"},
        {"tools": TOOLS},
        {"tool_choice": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"something_new": 1},
    ],
    ids=str,
)
def test_what_is_rendered_otherwise_is_another_conversation(fields: dict[str, Any]) -> None:
    talk = begun()
    first = found(talk.messages)
    talk.on_answer(ANSWER)
    talk.ask("And now?")
    assert found(talk.messages).answered == first.key
    assert found(talk.messages, **fields).answered != first.key


def test_a_changed_beginning_is_another_conversation() -> None:
    talk = begun()
    first = found(talk.messages)
    talk.on_answer(ANSWER)
    talk.ask("And now?")
    talk.history[1]["content"] = "Hi?"
    assert found(talk.messages).answered != first.key


@pytest.mark.parametrize("follows", [[], [{"role": "system", "content": "x"}], [CARRIER, {"role": "assistant"}]])
def test_only_results_and_questions_may_follow(follows: list[Message]) -> None:
    talk = begun()
    talk.on_answer(ANSWER)
    assert found(talk.messages + follows).answered is None or follows[-1:] == [{"role": "assistant"}]
    assert found([*talk.messages, CARRIER]).answered is not None


def test_a_prompt_with_pictures_is_none_of_ours_and_one_that_speaks_of_them_is() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}}]}
    assert read([picture]) is None
    assert read([{"role": "user", "content": 'What is "image_url" for?'}]) is not None


def test_which_answers_are_kept() -> None:
    ids = TokenIds((1, 2), (3, 4))
    for reason, message, ended in (
        ("stop", ANSWER, True),
        ("tool_calls", {"role": "assistant", "content": None, "tool_calls": [1]}, True),
        ("length", ANSWER, False),
    ):
        kept = kept_of(ids, reason, message, 5)
        assert kept is not None
        assert (list(kept.ids), kept.output_tokens, kept.ended, kept.beyond_tokens) == ([1, 2, 3, 4], 2, ended, 5)
    assert kept_of(ids, "abort", ANSWER, 0) is None
    assert kept_of(ids, "length", ANSWER | {"content": ""}, 0) is None  # cut off within its reasoning
    assert kept_of(ids, "length", ANSWER | {"tool_calls": [1]}, 0) is None
    assert kept_of(TokenIds((1, 2), ()), "stop", ANSWER, 0) is None
    assert kept_of(TokenIds((-1,), (2,)), "stop", ANSWER, 0) is None


def kept(tokens: int = 4, beyond: int = 0) -> Kept:
    it = kept_of(TokenIds((1,) * (tokens - 1), (2,)), "stop", ANSWER, beyond)
    assert it is not None
    return it


def test_why_a_conversation_does_not_go_on() -> None:
    def sent(content: str) -> bytes:
        return msgspec.json.encode({"role": "assistant", "content": content})

    assert why_not(kept(), sent("Hello."), 0) is None
    assert why_not(kept(beyond=10), sent("Hello."), 10) is None
    assert why_not(kept(beyond=11), sent("Hello."), 10) == "11 tokens of thinking, more than 10"
    assert why_not(kept(), sent("Hello!"), 10) == "the client changed content"
    assert why_not(kept(), b"[]", 10) == "the client changed role"


def test_the_least_recently_used_goes_first() -> None:
    book = HistoryBook(most_bytes=2 * kept().size)
    for key in (b"a", b"b"):
        book.keep(key, kept())
    assert book.find(b"a") is not None
    book.keep(b"c", kept())
    assert [book.find(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    book.keep(b"d", kept(tokens=1000))  # larger than all of it
    book.check_integrity()
    assert len(book) == 0
    book.keep(b"e", kept())
    book.clear()
    book.check_integrity()
    assert book.answers() == []

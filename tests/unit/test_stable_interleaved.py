"""What stands between a call and its result goes behind the results, in order, the same way on every turn."""

from __future__ import annotations

from typing import Any

import pytest

from governor.output.interleaved import repair
from governor.policy.model import Interleaved, RequestPolicy
from governor.wire.request import GenerationRequest
from serve.engine import Endpoint
from tests.stabilising import OFF, Sending, anthropic, asks, chat, decoded, responses, result, said, system, text, user

REPAIR = RequestPolicy(interleaved=Interleaved.REPAIR)
Message = dict[str, Any]


def order(*messages: Message) -> list[int] | None:
    request = chat(*messages)
    found = repair(Endpoint.CHAT, request.messages, request.roles)
    return None if found is None else list(found.order)


def use(*ids: str) -> Message:
    blocks = [{"type": "tool_use", "id": each, "name": "read_file", "input": {}} for each in ids]
    return {"role": "assistant", "content": [text("let me see"), *blocks]}


def used(*ids: str, more: tuple[Message, ...] = ()) -> Message:
    return user([*more, *({"type": "tool_result", "tool_use_id": each, "content": "found"} for each in ids)])


def item_call(call_id: str, kind: str = "function_call") -> Message:
    return {"type": kind, "call_id": call_id, "name": "read_file", "arguments": "{}"}


def item_result(call_id: str, kind: str = "function_call_output") -> Message:
    return {"type": kind, "call_id": call_id, "output": "found"}


def item_said(content: str) -> Message:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": content}]}


@pytest.mark.parametrize(
    ("messages", "after"),
    [
        ([user("q"), asks("a"), user("steer"), result("a")], [0, 1, 3, 2]),
        ([asks("a", "b"), result("a"), user("steer"), result("b")], [0, 1, 3, 2]),
        ([asks("a", "b"), user("1"), result("b"), user("2"), user("3"), result("a"), user("4")], [0, 2, 5, 1, 3, 4, 6]),
        ([asks("a"), system("now"), user("1"), result("a"), said("x")], [0, 3, 1, 2, 4]),
        ([asks("a"), user("1"), result("a"), said("x"), asks("a"), user("2"), result("a")], [0, 2, 1, 3, 4, 6, 5]),
    ],
    ids=["one", "two results", "several", "a system message", "an id again"],
)
def test_moved(messages: list[Message], after: list[int]) -> None:
    assert order(*messages) == after
    made = Sending(REPAIR)(chat(*messages))
    assert decoded(made.request) == [messages[index] for index in after]


@pytest.mark.parametrize(
    "messages",
    [
        [user("q")],
        [user("q"), asks("a"), result("a"), user("x")],
        [asks("a"), user("never answered")],
        [asks("a"), user("x"), said("y"), result("a")],
        [said("no call"), user("x"), result("a")],
        [user("x"), result("a")],
        [asks("a"), result("a"), user("x"), result("b")],
        [asks("a"), result("a"), user("x"), result(None)],
        [],
    ],
    ids=str,
)
def test_left_alone(messages: list[Message]) -> None:
    """Results of no call at all, or behind another assistant message, are for the engine to judge."""
    if messages:
        assert order(*messages) is None
    assert repair(Endpoint.CHAT, [], []) is None


@pytest.mark.parametrize("call_id", ["calla1", "call_a1", None, "unknown"])
def test_ids_are_read_as_compression_reads_them(call_id: str | None) -> None:
    assert order(asks("call_a1"), user("steer"), result(call_id)) == [0, 2, 1]
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert order(old, user("steer"), {"role": "function", "name": "f", "content": "x"}) == [0, 2, 1]


def test_untouched_by_default() -> None:
    request = chat(asks("a"), user("steer"), result("a"))
    assert Sending(OFF)(request).request is request


def test_what_is_said() -> None:
    sending = Sending(REPAIR)
    assert sending(chat(asks("a", "b"), user("1"), result("a"), result("b"))).edits == (
        "1 user message moved behind 2 results",
    )
    assert sending(chat(asks("a"), user("1"), system("2"), result("a"))).edits == ("2 messages moved behind 1 result",)
    both = sending(chat(asks("a"), user("1"), result("a"), asks("a"), user("1"), result("a")))
    assert both.edits == ("2 user messages moved behind 2 results",)


def anthropic_steer() -> GenerationRequest:
    return anthropic(user("q"), use("a", "b"), used("a"), user("steer"), system("s"), used("b"), said("x"))


def responses_steer() -> GenerationRequest:
    reasoning = {"type": "reasoning", "summary": []}
    steered = (item_call("a"), item_call("b"), user("steer"), item_result("a"), user([text("2")]), item_result("b"))
    return responses(user("q"), reasoning, *steered, item_said("x"), {"type": "item_reference", "id": "r"})


@pytest.mark.parametrize(
    ("request_", "after"),
    [(anthropic_steer(), [0, 1, 2, 5, 3, 4, 6]), (responses_steer(), [0, 1, 2, 3, 5, 7, 4, 6, 8, 9])],
    ids=["anthropic", "responses"],
)
def test_other_dialects(request_: GenerationRequest, after: list[int]) -> None:
    made = Sending(REPAIR)(request_)
    before = decoded(request_)
    assert decoded(made.request) == [before[index] for index in after]
    assert Sending(REPAIR)(made.request).request is made.request


def test_anthropic_in_order() -> None:
    for messages in (
        [user("q"), use("a"), used("a", more=(text("steer"),)), said("x")],
        [user("1"), user("2"), use("a"), used("a"), user("3")],
        [use("a"), user('"tool_result"'), user([text("tool_result")])],
    ):
        request = anthropic(*messages)
        assert Sending(REPAIR)(request).request is request


def test_responses_in_order() -> None:
    for items in (
        [user("q"), item_call("a"), item_result("a"), user("x")],
        [user("q"), item_call("a"), user("x")],
        [user("q"), item_call("a", "custom_tool_call"), item_result("a", "custom_tool_call_output"), user("x")],
        [user("q"), item_result("a")],
    ):
        request = responses(*items)
        assert Sending(REPAIR)(request).request is request
    made = Sending(REPAIR)(
        responses(item_call("a", "custom_tool_call"), user("x"), item_result("a", "custom_tool_call_output"))
    )
    assert [item.get("type") for item in decoded(made.request)] == ["custom_tool_call", "custom_tool_call_output", None]


def test_the_prefix_is_that_of_the_turn_before() -> None:
    talk = [user("q"), asks("a", "b"), result("a"), user("steer"), result("b")]
    sending = Sending(REPAIR)
    before = decoded(sending(chat(*talk)).request)
    for number in range(5):
        talk += [said("x"), user("y"), asks("a"), user(f"steer {number}"), result("a")]
        now = decoded(sending(chat(*talk)).request)
        assert now[: len(before)] == before
        before = now


def test_a_long_run_is_linear_work() -> None:
    """A quadratic search would take minutes."""
    items = [item_call(f"c{number}") for number in range(30_000)]
    assert repair(Endpoint.RESPONSES, responses(*items, user("x"), item_result("c0")).messages, ()) is not None
    request = chat(asks(*(f"c{number}" for number in range(30_000))), *(user("x") for _ in range(30_000)), result("c9"))
    assert repair(Endpoint.CHAT, request.messages, request.roles) is not None
    odd = [each for _ in range(30_000) for each in (user("x"), result("z"))]
    request = chat(said("x"), *odd)
    assert repair(Endpoint.CHAT, request.messages, request.roles) is None

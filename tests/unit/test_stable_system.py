"""A system prompt with a clock in it: pinned to the session's first, or reported by place and shape."""

from __future__ import annotations

from typing import Any

import pytest

from governor.wire.request import GenerationRequest
from tests.stabilising import (
    OFF,
    Sending,
    anthropic,
    chat,
    decoded,
    parts,
    responses,
    said,
    system,
    text,
    tool,
    user,
    value,
)

RULES = "rules " * 50


def prompt(clock: str, rules: str = RULES) -> str:
    return f"Started {clock}. NOTES [40%].\n{rules}"


def in_chat(words: str, *more: dict[str, Any]) -> GenerationRequest:
    return chat(system(words), user("a"), *more)


def in_developer_parts(words: str, *more: dict[str, Any]) -> GenerationRequest:
    return chat(system("You are new."), system([text(words), text("End.")], "developer"), user("a"), *more)


def in_anthropic(words: str, *more: dict[str, Any]) -> GenerationRequest:
    return anthropic(user("a"), *more, system=[text("You are new."), text(words, cache_control={"type": "ephemeral"})])


def in_anthropic_text(words: str, *more: dict[str, Any]) -> GenerationRequest:
    return anthropic(user("a"), *more, system=words)


def in_responses(words: str, *more: dict[str, Any]) -> GenerationRequest:
    return responses(user("a"), *more, instructions=words)


def in_response_items(words: str, *more: dict[str, Any]) -> GenerationRequest:
    return responses(system(words, "developer"), user("a"), *more, instructions="Be kind.")


DIALECTS = [in_chat, in_developer_parts, in_anthropic, in_anthropic_text, in_responses, in_response_items]
dialects = pytest.mark.parametrize("written", DIALECTS)


def head(request: GenerationRequest) -> bytes:
    """All before the last message's own bytes."""
    last = bytes(request.messages[-1])
    return b"|".join([bytes(request.system or b""), *map(bytes, request.messages[:-1])]) if last else b""


@dialects
def test_the_sessions_first_is_sent(written: Any) -> None:
    sending = Sending()
    first = sending(written(prompt("12:00 PM")))
    assert not first.edits
    later = (said("b"), user("c"))
    second = sending(written(prompt("12:01 PM"), *later))
    assert second.edits == ("system pinned: 1 volatile span",)
    assert parts(second.request) == parts(written(prompt("12:00 PM"), *later))
    assert not second.warnings
    assert not sending(written(prompt("12:00 PM"), *later)).edits
    assert sending(written(prompt("1:02 AM"), *later)).edits == ("system pinned: 2 volatile spans",)


@dialects
def test_any_other_change_renews_the_pin(written: Any) -> None:
    sending = Sending()
    sending(written(prompt("12:00 PM")))
    assert not sending(written(prompt("12:01 PM", RULES + "Speak French."))).edits
    made = sending(written(prompt("12:02 PM", RULES + "Speak French.")))
    assert parts(made.request) == parts(written(prompt("12:01 PM", RULES + "Speak French.")))


@dialects
def test_a_side_call_does_not_cost_the_pin(written: Any) -> None:
    """Titles and summaries come under the same session with a prompt of their own."""
    sending = Sending()
    sending(written(prompt("12:00 PM")))
    assert not sending(written("Write a title.")).edits
    assert sending(written(prompt("12:01 PM"))).edits
    for number in range(4):
        sending(written(f"Side call {'abcd'[number]} of its own"))
    assert not sending(written(prompt("12:02 PM"))).edits, "only a few are remembered"


@dialects
def test_as_sent_is_untouched_and_told(written: Any) -> None:
    sending = Sending(OFF)
    assert not sending(written(prompt("12:00 PM"))).warnings
    assert not sending(written(prompt("12:00 PM"))).warnings
    made = sending(written(prompt("12:01 PM")))
    before = len("Be kind.\n") if written is in_response_items else 0
    before += len("You are new.\n") if written in {in_developer_parts, in_anthropic} else 0
    assert made.warnings == (f"volatile_system: byte {before + len('Started 12:0')} '##:##'",)
    assert not made.edits
    assert not sending(written(prompt("12:01 PM"))).warnings, "told once for each change"


def test_the_offset_is_of_bytes() -> None:
    sending = Sending(OFF)
    sending(in_chat("Zürich, 1 °C, run 17 of abc1"))
    made = sending(in_chat("Zürich, 2 °C, run 18 of abc22"))
    assert made.warnings == (f"volatile_system: byte {len('Zürich, '.encode())} '#' and 2 more",)


def test_a_changed_shape_is_shown_and_never_what_it_says() -> None:
    sending = Sending(OFF)
    sending(in_chat("key 0f9acafe beside"))
    (warning,) = sending(in_chat("key 0f9a-cafe beside")).warnings
    assert warning == "volatile_system: byte 8 '#x#xxxxx' -> '#x#x-xxxx'"


def test_other_json_for_the_same_prompt() -> None:
    """Pinned: the bytes of the first; as sent: no clock is to blame."""
    one, other = system(prompt("12:00")), dict(reversed(system(prompt("12:00")).items()))
    sending = Sending()
    first = sending(chat(one, user("a"))).request
    made = sending(chat(other, user("a")))
    assert made.edits == ("system pinned: its JSON",)
    assert parts(made.request) == parts(first)
    sending = Sending(OFF)
    sending(chat(one, user("a")))
    assert not sending(chat(other, user("a"))).warnings


@pytest.mark.parametrize("odd", [None, 7, {"text": "1"}, [7, "12:00"], [{"type": "image", "id": 5}], ""])
def test_odd_contents_are_equal_or_not(odd: Any) -> None:
    sending = Sending()
    for _ in range(2):
        assert not sending(chat(system(odd), user("a"))).edits


def test_only_texts_are_volatile() -> None:
    sending = Sending()
    for number in range(2):
        assert not sending(anthropic(user("a"), system=[{"type": "text", "text": "x", "n": number}])).edits
        image = {"type": "image_url", "image_url": {"url": f"http://x/{number}"}}
        assert not sending(chat(system([image]), user("a"))).edits
    assert not sending(chat(system("1"), user("a"))).edits
    assert not sending(chat(system([text("2")]), user("a"))).edits, "a list is no text"
    assert not sending(chat(system("1", "developer"), user("a"))).edits


def test_a_deep_structure_is_no_error() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    sending = Sending()
    for tail in ([deep, text("1")], [deep, text("2")]):
        sending(chat(system(tail), user("a")))


def test_user_messages_and_later_instructions_are_not_pinned() -> None:
    sending = Sending()
    for clock in ("12:00", "12:01"):
        made = sending(chat(system("s"), user(f"It is {clock}"), system(f"Now {clock}"), user("x")))
        assert not made.edits
        assert not made.warnings


def test_sessions_and_agents_have_their_own() -> None:
    sending = Sending()
    sending(in_chat(prompt("12:00")))
    assert not sending(in_chat(prompt("12:01")), session="other").edits
    assert not sending(in_chat(prompt("12:01")), agent="bob").edits
    assert sending(in_chat(prompt("12:01"))).edits


def test_a_policy_that_changes_in_between() -> None:
    sending = Sending(OFF)
    sending(in_chat(prompt("12:00")))
    sending(in_chat(prompt("12:01")))
    pinned = Sending(stabiliser=sending.stabiliser)
    assert decoded(pinned(in_chat(prompt("12:02"))).request)[0] == system(prompt("12:01"))


def test_with_tools_and_repair_at_once() -> None:
    sending = Sending()
    sending(chat(system(prompt("12:00")), user("a"), tools=[tool("b"), tool("a")]))
    made = sending(chat(system(prompt("12:01")), user("a"), tools=[tool("a"), tool("b")]))
    assert [each["function"]["name"] for each in value(made.request.tools)] == ["a", "b"]
    assert decoded(made.request)[0] == system(prompt("12:00"))

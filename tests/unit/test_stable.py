"""The stabiliser's memory, and what it does to a request as a whole."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from governor.output.stable import Stabiliser, StableLimits
from governor.policy.model import RequestPolicy
from governor.types import AgentName, SessionId
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint
from tests.stabilising import (
    BILLING,
    OFF,
    ON,
    Sending,
    anthropic,
    asks,
    chat,
    decoded,
    responses,
    result,
    said,
    system,
    text,
    tool,
    user,
)


@pytest.mark.parametrize("policy", [OFF, RequestPolicy(), ON], ids=["off", "default", "on"])
def test_nothing_to_do_is_the_very_same_request(policy: RequestPolicy) -> None:
    sending = Sending(policy)
    sorted_tool = {"type": "function", "function": {"name": "a", "parameters": {"a": 1, "b": 2}}}
    for request in (
        chat(system("s"), user("a"), asks("a"), result("a"), tools=[sorted_tool]),
        anthropic(user("a"), said("b"), user("c"), system=[text("s")]),
        responses(user("a"), instructions="s"),
        parse(Endpoint.RESPONSES, b'{"model":"m","input":"hi"}'),
        parse(Endpoint.COMPLETIONS, b'{"model":"m","prompt":"hi"}'),
        parse(Endpoint.COUNT_TOKENS, b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}'),
    ):
        made = sending(request)
        assert made.request is request
        assert not made.edits
        assert not made.warnings


def test_everything_at_once() -> None:
    sending = Sending()

    def turn(clock: str, nonce: str, *more: dict[str, Any]) -> GenerationRequest:
        blocks = [text(f"{BILLING} nonce={nonce};"), text(f"It is {clock}.")]
        tools = [{"name": name, "input_schema": {}} for name in sorted(("b", "a"), reverse=nonce == "1")]
        return anthropic(user("q"), *more, system=blocks, tools=tools)

    first = sending(turn("12:00", "0")).request
    made = sending(turn("12:01", "1", said("x"), user("y")))
    assert made.edits == ("system: billing line dropped", "system pinned: 1 volatile span", "tools by name")
    assert not made.warnings
    assert (made.request.system, made.request.tools) != (None, None)
    assert bytes(made.request.system or b"") == bytes(first.system or b"")
    assert bytes(made.request.tools or b"") == bytes(first.tools or b"")
    assert made.request.json.body.startswith(first.json.body[: first.json.body.index(b'"role"')])


def test_system_and_repair_at_once() -> None:
    sending = Sending()
    sending(chat(system(BILLING), system("It is 1"), user("q")))
    made = sending(chat(system(BILLING), system("It is 2"), asks("a"), user("steer"), result("a")))
    assert decoded(made.request) == [system("It is 1"), asks("a"), result("a"), user("steer")]
    assert made.request.roles == ("system", "assistant", "tool", "user")
    assert len(made.edits) == 3


def test_memory_is_bounded_and_the_least_recently_used_goes() -> None:
    stabiliser = Stabiliser(StableLimits(sessions=2))
    sending = Sending(stabiliser=stabiliser)
    for session in ("one", "two", "one", "three"):
        sending(chat(system(f"It is {len(session)} of {session}"), user("x")), session=session)
    assert stabiliser.sessions == 2
    assert sending(chat(system("It is 9 of one"), user("x")), session="one").edits
    assert not sending(chat(system("It is 9 of two"), user("x")), session="two").edits

    stabiliser = Stabiliser(StableLimits(held_bytes=10_000))
    sending = Sending(stabiliser=stabiliser)
    for number in range(20):
        sending(chat(system("x" * 2000), user("x"), tools=[tool("a")]), session=str(number))
        assert stabiliser.held_bytes <= 10_000
    assert 2 <= stabiliser.sessions <= 4
    sending(chat(system("x" * 20_000), user("x")), session="large")
    assert stabiliser.sessions == 0


def test_integrity_is_checked() -> None:
    stabiliser = Stabiliser()
    Sending(stabiliser=stabiliser)(chat(system("x"), user("x")))
    stabiliser._bytes += 1
    with pytest.raises(AssertionError, match="1 sessions"):
        stabiliser.check_integrity()


def calls_made(request: GenerationRequest, policy: RequestPolicy) -> int:
    """Calls of Python and C functions for a request that is as the session's last."""
    stabiliser, count = Stabiliser(), 0

    def on_event(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    stabiliser.stabilised(AgentName("a"), SessionId("s"), request, policy)
    sys.setprofile(on_event)
    try:
        made = stabiliser.stabilised(AgentName("a"), SessionId("s"), request, policy)
    finally:
        sys.setprofile(None)
    assert made.request is request
    return count


def test_a_long_history_that_needs_nothing_costs_next_to_nothing() -> None:
    """Counted, not timed: machines are busy."""
    tools = [{"type": "function", "function": {"name": f"t{n:02}", "parameters": {}}} for n in range(40)]
    history = [each for n in range(500) for each in (user("x " * 200), asks(f"c{n}"), result(f"c{n}", "y " * 200))]
    long = chat(system("It is 12:00. " * 2000), *history, tools=tools)
    short = chat(system("It is 12:00. " * 2000), *history[:3], tools=tools)
    assert calls_made(long, RequestPolicy()) == calls_made(short, RequestPolicy()) < 60
    assert calls_made(short, ON) < 80
    assert calls_made(long, ON) < 80 + 2 * len(history)

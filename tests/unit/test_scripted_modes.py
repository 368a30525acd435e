"""The named engines of the failure cases."""

from __future__ import annotations

import re

import pytest

from serve.scripted.ask import Ask, Dialect, Message, ToolCall
from serve.scripted.behaviour import Behaviour
from serve.scripted.modes import MODES, ModeOptions, pair_violation


def _decide(mode: str, *messages: Message, number: int = 0, user: str = "", **options: object) -> Behaviour:
    ask = Ask(dialect=Dialect.CHAT, model="m", messages=messages, user=user)
    return MODES[mode](ask, number, ModeOptions(**options))  # type: ignore[arg-type]


def _calling(*ids: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", calls=tuple(ToolCall(i, "f", "{}") for i in ids), reasoning=reasoning)


def _result(call_id: str) -> Message:
    return Message(role="tool", text="x", answers_call=call_id)


_USER = Message(role="user", text="u")


@pytest.mark.parametrize(
    "messages",
    [
        (_USER,),
        (_USER, _calling("a", "b"), _result("b"), _result("a"), _USER),
        (_calling("a"), _result("a"), _calling("a"), _result("a")),
    ],
)
def test_pairs_that_fit(messages: tuple[Message, ...]) -> None:
    assert pair_violation(messages) is None
    assert _decide("strict_pairs", *messages).status == 200


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ((_USER, _result("a")), r"messages\[1\]"),
        ((_calling("a"), _USER, _result("a")), r"messages\[0\]"),
        ((_calling("a", "b"), _result("a")), r"messages\[0\]"),
        ((_calling("a"), _result("a"), _result("a")), r"messages\[2\]"),
        ((_calling("a"),), r"messages\[0\]"),
    ],
)
def test_pairs_that_do_not(messages: tuple[Message, ...], place: str) -> None:
    behaviour = _decide("strict_pairs", *messages)
    assert behaviour.status == 400
    assert behaviour.message is not None
    assert re.match(place, behaviour.message)


def test_reasoning_required_and_forbidden() -> None:
    assert _decide("require_reasoning_content", _calling("a", reasoning="r")).status == 200
    assert _decide("require_reasoning_content", _calling("a")).status == 400
    assert _decide("forbid_reasoning_content", _calling("a", reasoning="")).status == 400
    assert _decide("forbid_reasoning_content", _calling("a")).status == 200


def test_echo_is_as_long_as_the_input() -> None:
    assert _decide("echo_input", _USER, _result("a")).say == "u\nx"


def test_data_urls() -> None:
    image = Message(role="user", has_data_url=True)
    assert _decide("window_check_no_data_urls", image).status == 400
    assert _decide("window_check_no_data_urls", _USER, window_tokens=9).window_tokens == 9


def test_reported_usage() -> None:
    assert _decide("honour_include_usage", tokens=(7, 3)).usage == (7, 3)


def test_mix_goes_round_unless_the_request_names_its_way() -> None:
    mix = ("ok", "stub_500", "rst", "timeout")
    ways = [_decide("by_mix", number=number, mix=mix, hang_s=5.0) for number in range(5)]
    assert [way.status for way in ways] == [200, 500, 200, 200, 200]
    assert [way.ends_before_head for way in ways] == [False, False, True, False, False]
    assert ways[3].hang_s == 5.0
    assert _decide("by_mix", number=0, mix=mix, user="stub_500").status == 500

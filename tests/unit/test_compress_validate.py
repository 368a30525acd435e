"""The strict validator knows each fault, and what of it a client may send."""

from __future__ import annotations

import pytest

from bench.histories import SHAPES, asks, call, message, result
from governor.compress.messages import read_message
from governor.compress.validate import new_rules_broken, violations

USER, ANSWER = message("user", "u"), message("assistant", "a")


def faults(*raws: bytes) -> list[str]:
    return [str(each) for each in violations(map(read_message, raws))]


@pytest.mark.parametrize("shape", SHAPES)
def test_good_histories_have_no_fault(shape: str) -> None:
    assert faults(*SHAPES[shape]()) == []


def test_parallel_results_may_come_in_any_order() -> None:
    assert faults(USER, asks(call("a"), call("b")), result("b", ""), result("a", "1"), ANSWER) == []


@pytest.mark.parametrize(
    ("raws", "fault"),
    [
        ((USER, result("a", "1")), "messages[1]: a result that answers no call before it"),
        ((USER, asks(call("a")), USER), "messages[1]: calls without results directly after them"),
        ((USER, asks(call("a"))), "messages[1]: calls without results directly after them"),
        ((asks(call("a"), call("a")), result("a", "1")), "messages[0]: two calls with one id"),
        ((message("assistant", None),), "messages[0]: neither content nor calls"),
        ((message("user", None),), "messages[0]: neither content nor calls"),
        ((message("user", 7),), "messages[0]: content that is neither text nor a list"),
        ((message("user", [{"text": "x"}]),), "messages[0]: content parts that have no type"),
        ((message("bot", "x"),), "messages[0]: not a message with a known role"),
        ((message("tool", "1", tool_call_id=["a"]),), "messages[0]: a result that answers no call before it"),
        ((message("user", "x") + b" ", b'{"role":{}}'), "messages[1]: not a message with a known role"),
        ((b"[1]",), "messages[0]: not a message with a known role"),
        ((b'{"role":"assistant","tool_calls":[{"id":1}]}',), "messages[0]: tool_calls that cannot be read"),
        (
            (asks(call("a") | {"function": {"name": "f", "arguments": '{"x'}}), result("a", "1")),
            "messages[0]: arguments that are not JSON",
        ),
    ],
)
def test_faults(raws: tuple[bytes, ...], fault: str) -> None:
    assert fault in faults(*raws)


def test_between_a_call_and_its_result_stands_nothing() -> None:
    assert len(faults(USER, asks(call("a")), USER, result("a", "1"))) == 2


def test_only_what_was_not_broken_before_counts() -> None:
    broken, sound = [read_message(USER), read_message(result("a", "1"))], [read_message(USER)]
    assert new_rules_broken(broken, broken) == ()
    assert new_rules_broken(broken, sound) == ()
    assert new_rules_broken(sound, broken) == ("a result that answers no call before it",)

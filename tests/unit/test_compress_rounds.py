"""Rounds, units and what is held, on histories as odd as clients send them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.histories import asks, call, message, result
from governor.compress.messages import read_message
from governor.compress.rounds import Hold, Rounds, holds_of, rounds_of

CARRIER = message("user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")
USER, ANSWER, SYSTEM = message("user", "u"), message("assistant", "a"), message("system", "s")


def rounds(*raws: bytes) -> Rounds:
    return rounds_of([read_message(raw) for raw in raws])


def units(*raws: bytes) -> list[list[tuple[int, int]]]:
    return [[(unit.start, unit.end) for unit in each.units] for each in rounds(*raws).rounds]


def holds(*raws: bytes, recent_tokens: int = 0, sizes: Sequence[int] = ()) -> list[Hold]:
    messages = [read_message(raw) for raw in raws]
    return holds_of(messages, rounds_of(messages), sizes or [1] * len(raws), recent_tokens)


def test_a_call_and_its_results_are_one_unit() -> None:
    parallel = asks(call("a"), call("b"))
    assert units(SYSTEM, USER, parallel, result("b", "2"), result("a", "1"), ANSWER, USER) == [
        [(0, 1)],
        [(1, 2), (2, 5), (5, 6)],
        [(6, 7)],
    ]


def test_what_stands_between_a_call_and_its_result_belongs_to_them() -> None:
    assert units(USER, asks(call("a")), USER, result("a", "1"), ANSWER) == [[(0, 1), (1, 4), (4, 5)]]
    found = rounds(USER, asks(call("a"), call("b")), result("a", "1"), USER, result("b", "2"))
    assert found.calls.keys() == {2, 4}
    assert found.rounds[0].units[-1].end == 5


def test_an_id_used_again_belongs_to_the_latest_call() -> None:
    first, second = asks(call("call_0", n=1)), asks(call("call_0", n=2))
    raws = (USER, first, result("call_0", "1"), USER, second, result("call_0", "2"), result("call_0", "3"))
    assert units(*raws) == [[(0, 1), (1, 3)], [(3, 4), (4, 7)]]
    assert [rounds(*raws).calls[index].arguments for index in (2, 5, 6)] == ['{"n":1}', '{"n":2}', '{"n":2}']


def test_an_id_whose_punctuation_was_taken_out_is_still_the_call_s() -> None:
    assert rounds(USER, asks(call("call_a-1")), ANSWER, result("calla1", "1")).calls.keys() == {3}


def test_a_result_without_a_known_id_belongs_to_the_calls_it_follows_or_to_none() -> None:
    follows = rounds(USER, asks(call("a"), call("b")), message("tool", "1"), result("b", "2"))
    assert follows.calls[2].id == "a"
    legacy = message("assistant", None, function_call={"name": "f", "arguments": "{}"})
    assert rounds(USER, legacy, message("function", "1", name="f")).calls[2].name == "f"
    orphan = rounds(USER, result("x", "1"), ANSWER)
    assert orphan.calls == {}
    assert [len(each.units) for each in orphan.rounds] == [3]


def test_calls_that_got_no_result_are_a_unit() -> None:
    assert units(USER, asks(call("a")), USER, asks(call("b"), call("c")), result("c", "1")) == [
        [(0, 1), (1, 2)],
        [(2, 3), (3, 5)],
    ]


def test_consecutive_user_messages_begin_one_round_and_a_carrier_none() -> None:
    assert units(USER, USER, ANSWER, CARRIER, ANSWER, USER, CARRIER) == [
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
        [(5, 6), (6, 7)],
    ]


def test_instructions_first_and_last_user_message_and_the_unanswered_end_are_held() -> None:
    developer = message("developer", "d")
    held = holds(SYSTEM, developer, USER, ANSWER, USER, ANSWER, developer, USER, USER, CARRIER)
    free = [index for index, hold in enumerate(held) if hold is Hold.FREE]
    assert free == [3, 4, 5]


def test_the_last_calls_and_their_results_are_open_even_before_a_carrier() -> None:
    chain = (USER, asks(call("a")), result("a", "1"), asks(call("b"), call("c")), result("b", "2"), result("c", "3"))
    for end in ((), (CARRIER,)):
        held = holds(*chain, *end)
        assert held[:6] == [Hold.VERBATIM, Hold.FREE, Hold.FREE, Hold.VERBATIM, Hold.OPEN, Hold.OPEN]
    answered = holds(*chain, ANSWER, USER)
    assert answered == [Hold.VERBATIM, *[Hold.FREE] * 6, Hold.VERBATIM]


def test_a_carrier_is_not_taken_for_the_last_user_message() -> None:
    held = holds(USER, ANSWER, message("user", "the task"), asks(call("a")), result("a", "1"), ANSWER, CARRIER)
    assert held[2] is Hold.VERBATIM
    assert held[6] is Hold.VERBATIM


def test_recent_units_are_held_whole_as_far_as_they_fit() -> None:
    chain = (USER, asks(call("a")), result("a", "1"), ANSWER, USER)
    sizes = (1, 5, 20, 3, 1)
    assert holds(*chain, sizes=sizes, recent_tokens=4)[1:4] == [Hold.FREE, Hold.FREE, Hold.RECENT]
    assert holds(*chain, sizes=sizes, recent_tokens=28)[1:4] == [Hold.FREE, Hold.FREE, Hold.RECENT]
    assert holds(*chain, sizes=sizes, recent_tokens=29)[1:4] == [Hold.RECENT] * 3


def test_what_cannot_be_read_is_held() -> None:
    odd = (b"[1]", b'{"role":7}', b'{"role":["user"]}')
    assert holds(USER, *odd, ANSWER, USER)[1:5] == [*[Hold.VERBATIM] * 3, Hold.FREE]
    assert rounds(USER, asks(call("a")), message("tool", "1", tool_call_id=["a"])).calls[2].id == "a"
    broken = b'{"role":"assistant","tool_calls":"odd"}'
    assert units(USER, broken, result("a", "1")) == [[(0, 1), (1, 3)]]

"""No change of an answer's meaning is taken for a way of writing it, and no way of writing it for a change."""

from __future__ import annotations

import json
from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.output.history import HistoryBook, Kept
from governor.wire.same import difference
from tests.conversing import Hermes, OpenClaw

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.text("abcdefgh_", min_size=1, max_size=8)
arguments = st.dictionaries(texts, values, max_size=4)
spaced = st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " : ")])


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    written = json.dumps(draw(arguments), separators=draw(spaced), ensure_ascii=draw(st.booleans()))
    number = draw(st.integers(0, 2**64))
    function = {"name": draw(names), "arguments": written}
    return {"id": f"call_{number:x}", "index": 0, "type": "function", "function": function}


answers = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": texts,
        "reasoning_content": st.none() | texts,
        "tool_calls": st.lists(calls(), max_size=3),
    }
)


@settings(deadline=None)
@given(answers)
def test_what_clients_are_known_to_do_is_harmless(answer: dict[str, Any]) -> None:
    for client in (Hermes(""), OpenClaw("")):
        assert difference(answer, client.written(answer)) is None


@settings(deadline=None)
@given(answers, answers)
def test_two_answers_are_the_same_only_if_they_say_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    sent = Hermes("").written(other)
    same = (one["content"].strip(), *map(meaning, one["tool_calls"])) == (
        other["content"].strip(),
        *map(meaning, other["tool_calls"]),
    )
    assert (difference(one, sent) is None) == same


@settings(deadline=None)
@given(answers, st.data())
def test_any_one_change_is_found(answer: dict[str, Any], data: st.DataObject) -> None:
    sent = Hermes("").written(answer)
    places = ["content", "call"] + [
        f"{field} {n}" for n in range(len(answer["tool_calls"])) for field in ("n", "a", "i")
    ]
    place = data.draw(st.sampled_from(places))
    if place == "content":
        at = data.draw(st.integers(0, len(sent["content"])))
        sent["content"] = sent["content"][:at] + "x" + sent["content"][at:]
    elif place == "call":
        sent["tool_calls"] = [*sent.get("tool_calls", ()), data.draw(calls())]
    else:
        field, _, number = place.partition(" ")
        call = sent["tool_calls"][int(number)]
        if field == "n":
            call["function"]["name"] += "x"
        elif field == "i":
            call["id"] += "0"
        else:
            changed = json.loads(call["function"]["arguments"])
            key = data.draw(st.sampled_from([*changed, "new"]))
            changed[key] = [changed.get(key)]
            call["function"]["arguments"] = json.dumps(changed)
    assert difference(answer, sent) is not None


def meaning(call: dict[str, Any]) -> tuple[str, str, str]:
    function = call["function"]
    return call["id"], function["name"], json.dumps(normal(json.loads(function["arguments"])), sort_keys=True)


def normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: normal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [normal(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("kfn"), st.integers(0, 5), st.integers(0, 300)), max_size=40))
def test_the_book_holds_no_more_than_it_may(steps: list[tuple[str, int, int]]) -> None:
    book = HistoryBook(most_bytes=3000)
    for what, number, tokens in steps:
        key = bytes([number])
        if what == "k":
            kept = Kept(ids=array("I", range(tokens)), output_tokens=1, ended=True, shown=b"{}", beyond_tokens=0)
            book.keep(key, kept)
            assert book.find(key) is kept or kept.size > 3000
        elif what == "f":
            book.forget(key)
            assert book.find(key) is None
        else:
            book.find(key)
        book.check_integrity()

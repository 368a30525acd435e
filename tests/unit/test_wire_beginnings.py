"""A body that goes on with another is read as if nothing of it were known, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import BadRequest
from governor.wire.beginnings import Beginnings, Known
from governor.wire.jsonobject import appended
from governor.wire.request import GenerationRequest, parse, with_beginning, with_messages
from serve.engine import Endpoint

KEY = "alice"
_TEXTS = st.text(max_size=6) | st.sampled_from(["}],", '"', "é\u2014", "日本", "\\"])
_MESSAGES = st.builds(
    lambda role, text, more: {"role": role, "content": text, **more},
    st.sampled_from(["system", "user", "assistant", "tool"]),
    _TEXTS,
    st.dictionaries(st.sampled_from(["name", "tool_calls", "x"]), st.none() | st.lists(_TEXTS, max_size=2), max_size=2),
)
_CONVERSATIONS = st.lists(_MESSAGES, min_size=1, max_size=6)


@st.composite
def _written(draw: st.DrawFn, messages: list[dict[str, Any]]) -> str:
    """A body as one client would always write it."""
    befores: list[dict[str, Any]] = [{}, {"model": "m"}, {"model": "m", "tools": [{"type": "function"}]}]
    afters: list[dict[str, Any]] = [{}, {"stream": True}, {"temperature": 0.5, "n": 1}]
    before, after = draw(st.sampled_from(befores)), draw(st.sampled_from(afters))
    whole = {**before, "messages": messages, "model": "m", **after}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")]))
    return json.dumps(whole, ensure_ascii=draw(st.booleans()), separators=separators)


def read(beginnings: Beginnings, body: bytes) -> tuple[GenerationRequest, Known | None]:
    """As the gateway does it."""
    known = beginnings.find(KEY, body)
    request = parse(Endpoint.CHAT, body, known)
    digests = [message[:4] for message in request.messages]
    beginnings.note(KEY, request.json, request.messages, request.roles, digests, request.known)
    return request, known


def outcome(body: bytes, known: Known | None) -> object:
    """All that a request says, or why it is refused."""
    try:
        request = parse(Endpoint.CHAT, body, known)
    except BadRequest as error:
        return error.message, error.param
    json_ = request.json
    fields = {name: bytes(json_.raw(name) or b"") for name in json_.names()}
    edited = json_.edited({"max_tokens": b"1", "stream": None, "messages": b"[]"})
    return request.messages, request.roles, request.model, request.stream, fields, edited, json_.edited({})


@given(_CONVERSATIONS, st.lists(_MESSAGES, max_size=3), st.data())
def test_a_body_that_goes_on_is_read_as_a_whole_one_is(
    talk: list[dict[str, Any]], more: list[dict[str, Any]], data: st.DataObject
) -> None:
    beginnings = Beginnings()
    first = data.draw(_written(talk)).encode()
    read(beginnings, first)
    kept = data.draw(st.integers(0, len(talk)))
    second = data.draw(_written([*talk[:kept], *more])).encode()
    known = beginnings.find(KEY, second)
    assert outcome(second, known) == outcome(second, None)


@given(_CONVERSATIONS, st.data())
def test_what_is_broken_behind_a_known_beginning_is_refused_in_the_same_words(
    talk: list[dict[str, Any]], data: st.DataObject
) -> None:
    beginnings = Beginnings()
    first = data.draw(_written(talk)).encode()
    read(beginnings, first)
    at = data.draw(st.integers(0, len(first)))
    new = data.draw(
        st.binary(max_size=3)
        | st.sampled_from([b",", b"]", b"}", b',"model":"x"', b',{"role":"user"}', b",]", b"\xff"])
    )
    second = first[:at] + new + first[data.draw(st.integers(at, min(at + 3, len(first)))) :]
    assert outcome(second, beginnings.find(KEY, second)) == outcome(second, None)


def body_of(texts: list[str], **more: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def test_messages_that_were_read_are_the_same_objects_and_their_digests_are_known() -> None:
    beginnings = Beginnings()
    first, known = read(beginnings, body_of(["a", "b"]))
    assert known is None
    second, known = read(beginnings, body_of(["a", "b", "c"], stream=True))
    assert known is not None
    assert known.digests == (b'{"ro', b'{"ro')
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=False))
    assert (second.stream, second.roles) == (True, ("user",) * 3)


def test_an_edit_in_the_middle_leaves_what_is_before_it_known() -> None:
    beginnings = Beginnings()
    read(beginnings, body_of(["a", "b", "c", "d"]))
    _, known = read(beginnings, body_of(["a", "b", "x", "d"]))
    assert known is not None
    assert (len(known.messages), known.replaces) == (2, None)
    assert beginnings.find(KEY, body_of(["a", "b", "c", "d", "e"])).messages[3].endswith(b'"d"}')  # type: ignore[union-attr]
    assert beginnings.find(KEY, body_of(["other"])) is None
    assert beginnings.find("bob", body_of(["a", "b", "c", "d"])) is None


def test_a_longer_body_takes_the_place_of_the_one_it_goes_on_with() -> None:
    beginnings = Beginnings()
    bodies = [body_of([str(number) for number in range(length)]) for length in range(1, 9)]
    for body in bodies:
        read(beginnings, body)
        assert beginnings.held_bytes == len(body)


@pytest.mark.parametrize(("most_bytes", "most_of_one"), [(10_000, 3), (500, 64), (10, 64)])
def test_what_is_held_is_bounded_and_the_last_read_stays(most_bytes: int, most_of_one: int) -> None:
    beginnings = Beginnings(most_bytes, most_of_one)
    for number in range(20):
        body = body_of([str(number), "x" * 30])
        read(beginnings, body)
        assert beginnings.held_bytes <= min(most_bytes, most_of_one * len(body))
    longer = body_of(["19", "x" * 30, "more"])
    assert (beginnings.find(KEY, longer) is not None) == (most_bytes > 100)
    assert beginnings.find(KEY, body_of(["3", "x" * 30, "more"])) is None


@given(_CONVERSATIONS, _CONVERSATIONS, st.data())
def test_another_beginning_gives_what_other_messages_give(
    talk: list[dict[str, Any]], beginning: list[dict[str, Any]], data: st.DataObject
) -> None:
    request = parse(Endpoint.CHAT, data.draw(_written(talk)).encode())
    covered = data.draw(st.integers(0, len(talk)))
    raw = [json.dumps(message).encode() for message in beginning]
    quick = with_beginning(request, raw, covered)
    slow = with_messages(request, (*raw, *request.messages[covered:]))
    assert (quick.messages, quick.roles, quick.json.body) == (slow.messages, slow.roles, slow.json.body)
    assert quick.json.names() == slow.json.names()
    assert bytes(quick.json.raw("messages") or b"") == bytes(slow.json.raw("messages") or b"")
    assert quick.json.edited({"model": b'"x"', "n": b"1"}) == slow.json.edited({"model": b'"x"', "n": b"1"})


def test_appended_fields_stand_at_the_end() -> None:
    assert appended(b'{"a": 1} \n', {"b": b"true", "c": b"[]"}) == b'{"a": 1,"b":true,"c":[]}'

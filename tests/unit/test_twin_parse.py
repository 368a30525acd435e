"""The twin's output, told apart as it streams."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from serve.twin_server.answers import Answer, Choice, Offer
from serve.twin_server.calls import ToolSpec, write_call
from serve.twin_server.parse import AnswerParser, CallArguments, CallStarted, Parsed, Reasoning, Text, gather, parse
from serve.twin_server.pieces import IM_END, decode, encode

_TOOL = ToolSpec(
    "write",
    {
        "properties": {
            "text": {"type": "string"},
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "ok": {"type": "boolean"},
            "list": {"type": ["array", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "size": {"$ref": "#/$defs/Size"},
            "mode": {"enum": ["a", "b"]},
            "level": {"enum": [1, 2]},
        },
        "$defs": {"Size": {"type": "object", "properties": {"w": {"type": "integer"}}}},
    },
)
_OFFER = Offer((_TOOL,))


def output(text: str, *, in_reasoning: bool = False, visible_chars: int | None = None) -> Answer:
    ids = encode(text)
    ids.append(IM_END)
    return Answer(
        ids=ids,
        natural_tokens=len(ids),
        finish="stop",
        matched_stop=IM_END,
        visible_chars=len(text) if visible_chars is None else visible_chars,
        in_reasoning=in_reasoning,
        question="q",
    )


def read(text: str, offer: Offer | None = _OFFER, *, in_reasoning: bool = False) -> Parsed:
    return parse(output(text, in_reasoning=in_reasoning), offer)


def test_the_parts() -> None:
    call = write_call("write", {"text": "hi"})
    parsed = read(f"thought\n\nmore\n</think>\n\nsaid\n\nmore\n\n{call}\n{call}", in_reasoning=True)
    assert (parsed.reasoning, parsed.content) == ("thought\n\nmore\n", "\n\nsaid\n\nmore\n\n")
    assert [(each.name, each.arguments) for each in parsed.calls] == [("write", '{"text": "hi"}')] * 2
    assert parsed.calls[0].id != parsed.calls[1].id


@pytest.mark.parametrize("text", ["", "\n", "a\n", "\n\na", "a\n\n\nb\n\n"])
def test_content_keeps_its_line_breaks(text: str) -> None:
    assert read(text).content == text


def test_whole_texts_come_in_one_piece() -> None:
    answer = output("one two three\n</think>\n\nfour five", in_reasoning=True)
    parser = AnswerParser(answer)
    assert parser.feed(answer.ids) == [Reasoning("one two three\n"), Text("\n\nfour five")]


@pytest.mark.parametrize("portion", [1, 2, 3, 7])
def test_portions_say_what_the_whole_says(portion: int) -> None:
    call = write_call("write", {"text": "日本語 </thing> 🙂\n\n", "n": -4, "list": [1, "ä"]})
    answer = output(f"über\n</think>\n\nsaid\n\n{call}\n{call}", in_reasoning=True)
    parser = AnswerParser(answer, _OFFER)
    deltas = [
        delta
        for at in range(0, len(answer.ids), portion)
        for delta in parser.feed(answer.ids[at : at + portion])
    ]  # fmt: skip
    assert gather(deltas) == parse(answer, _OFFER)
    assert "\ufffd" not in str(deltas)


def test_a_call_streams_by_its_arguments() -> None:
    answer = output(write_call("write", {"text": "a", "n": 4}))
    parser = AnswerParser(answer, _OFFER)
    started, *arguments = [delta for token in answer.ids for delta in parser.feed((token,))]
    assert isinstance(started, CallStarted)
    assert (started.index, started.name) == (0, "write")
    assert arguments == [CallArguments(0, '{"text": "a"'), CallArguments(0, ', "n": 4'), CallArguments(0, "}")]


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("text", "12", "12"),
        ("text", "a\n", "a\n"),
        ("text", "", ""),
        ("text", "null", None),
        ("n", "12", 12),
        ("n", "twelve", "twelve"),
        ("x", "1.5", 1.5),
        ("ok", "true", True),
        ("list", '["a"]', ["a"]),
        ("list", "NULL", None),
        ("either", "12", "12"),
        ("maybe", "12", 12),
        ("size", '{"w": 1}', {"w": 1}),
        ("mode", "b", "b"),
        ("level", "2", 2),
        ("unknown", "12", "12"),
    ],
)
def test_arguments_are_typed_by_the_schema(name: str, written: str, value: Any) -> None:
    (call,) = read(write_call("write", {name: written})).calls
    assert msgspec.json.decode(call.arguments) == {name: value}


def test_a_call_without_arguments() -> None:
    (call,) = read(write_call("write", {})).calls
    assert call.arguments == "{}"


def test_arguments_of_a_tool_that_is_not_offered_are_texts() -> None:
    (call,) = read(write_call("other", {"n": 4})).calls
    assert (call.name, call.arguments) == ("other", '{"n": "4"}')


@pytest.mark.parametrize("offer", [None, Offer(), Offer((_TOOL,), Choice.NONE)])
def test_without_tools_a_call_is_text(offer: Offer | None) -> None:
    call = write_call("write", {"n": 4})
    parsed = read(f"so\n\n{call}", offer)
    assert (parsed.content, parsed.calls) == (f"so\n\n{call}", ())


def test_a_call_that_is_cut_tells_what_it_has() -> None:
    (call,) = read(write_call("write", {"n": 4, "text": "long"}).partition("long")[0]).calls
    assert call.arguments == '{"n": 4'


def test_the_request_says_whether_it_begins_as_reasoning() -> None:
    answer = output("a\n</think>\n\nb", in_reasoning=True)
    assert parse(answer, in_reasoning=False).content == "a\n</think>\n\nb"
    closed = output("only content")
    assert parse(closed, in_reasoning=True).reasoning == "only content"


def test_reasoning_may_stay_in_the_content() -> None:
    answer = output("a\n</think>\n\nb", in_reasoning=True)
    parser = AnswerParser(answer, separate_reasoning=False)
    assert parser.feed(answer.ids) == [Text("a\n</think>\n\nb")]


def test_what_is_not_visible_is_not_shown() -> None:
    answer = output("one two three", visible_chars=6)
    assert parse(answer).content == "one tw"
    assert len(decode(answer.ids, skip_special_tokens=True)) == 13


def test_a_long_argument_is_quick() -> None:
    text = "if a > b: return x -> y\n" * 12_000
    answer = output(write_call("write", {"text": text}))
    parser = AnswerParser(answer, _OFFER)
    began = time.thread_time()
    deltas = [delta for token in answer.ids for delta in parser.feed((token,))]
    assert time.thread_time() - began < 3, "it is searched when it may be over, not at each token"
    assert msgspec.json.decode(gather(deltas).calls[0].arguments) == {"text": text}

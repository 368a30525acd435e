"""The step vocabulary: what a script's JSON means, and how a wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from serve.scripted.script import (
    BadScript,
    Close,
    Ending,
    Framing,
    Hang,
    Head,
    Sleep,
    Tokens,
    Write,
    expand,
    parse_script,
)

_HEAD = {"status": 200, "headers": {"Content-Type": "text/event-stream"}}


def test_expand_replaces_repeat_and_concat_at_any_depth() -> None:
    raw = {"a": [{"$concat": ["x", {"$repeat": ["ab", 3]}]}], "b": 1}
    assert expand(raw) == {"a": ["xababab"], "b": 1}


def test_every_step_of_the_vocabulary() -> None:
    steps = parse_script(
        [
            _HEAD,
            {"sse": {"é": 1}, "event": "ping"},
            {"data": "[DONE]"},
            {"json": [1]},
            {"text": ": note\n\n"},
            {"b64": "/w==", "flush": True},
            {"sleep": 0.5},
            {"tokens": 3, "interval_ms": 20},
            {"close": "rst"},
        ]
    )
    assert steps == (
        Head(200, (("Content-Type", "text/event-stream"),), Framing.CHUNKED),
        Write('event: ping\ndata: {"é":1}\n\n'.encode()),
        Write(b"data: [DONE]\n\n"),
        Write(b"[1]"),
        Write(b": note\n\n"),
        Write(b"\xff", flush=True),
        Sleep(0.5),
        Tokens(3, 0.02, closes=True),
        Close(Ending.RST),
    )


def test_pieces_cut_bytes_not_characters() -> None:
    steps = parse_script([_HEAD, {"text": "é!", "piece_bytes": 1}])
    assert steps[1:] == (Write(b"\xc3", flush=True), Write(b"\xa9", flush=True), Write(b"!", flush=True))


def test_a_given_length_is_the_framing() -> None:
    (head,) = parse_script([{"status": 400, "headers": {"content-length": "3"}}])
    assert isinstance(head, Head)
    assert head.framing is Framing.LENGTH


def test_tokens_that_are_followed_by_more_do_not_end_the_stream() -> None:
    steps = parse_script([_HEAD, {"tokens": 1}, {"data": "[DONE]"}, {"close": "fin"}])
    assert steps[1] == Tokens(1, 0.0, closes=False)


def test_an_answer_may_be_silence_or_a_reset() -> None:
    assert parse_script([{"hang": 120}]) == (Hang(120.0),)
    assert parse_script([{"close": "rst"}]) == (Close(Ending.RST),)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ([{"status": 200, "data": "x"}], "exactly one of"),
        ([{"wait": 1}], "exactly one of"),
        ([_HEAD, {"sleep": 1, "flush": True}], "unknown keys"),
        ([_HEAD, {"close": "softly"}], "step 1"),
        ([_HEAD, {"b64": "%%"}], "step 1"),
        (["data"], "an object is needed"),
        ([{"data": "x"}], "before a status"),
    ],
)
def test_a_wrong_script_is_refused_with_its_step(raw: list[Any], reason: str) -> None:
    with pytest.raises(BadScript, match=reason):
        parse_script(raw)

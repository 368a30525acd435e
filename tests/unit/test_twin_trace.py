"""The trace format."""

from __future__ import annotations

import pytest

from governor.types import PromptShape
from serve.errors import ServeError
from serve.twin.trace import (
    Agent,
    Client,
    Compaction,
    Distribution,
    Echo,
    Generator,
    Header,
    Line,
    Piece,
    PieceKind,
    Session,
    Shared,
    Turn,
    assembled,
    read_trace,
    write_trace,
)

LINES: list[Line] = [
    Header(name="all", window_tokens=1000, until_s=60.0, sources=("nobody",), calibration={"x": "why"}),
    Agent(name="a", client=Client.HERMES, policy="hermes", compaction=Compaction(threshold=0.65)),
    Agent(name="b"),
    Session(agent="a", session="s", start_s=3.0, shared=Shared(name="tools", tokens=500)),
    Turn(agent="a", session="s", new=(Piece(tokens=5),), output_tokens=7, cap=9, at_s=4.0, patience_s=2.5),
    Turn(
        agent="a",
        session="s",
        shape=PromptShape.BRANCH,
        branch_at=3,
        echo=Echo.DROPPED,
        new=(Piece(kind=PieceKind.TOOL, tokens=5), Piece(tokens=2)),
        carrier_tokens=2,
        output_tokens=1,
        accept_length=1.5,
        aside=True,
    ),
    Generator(agent="b", session="s", until_s=30.0, tool_s=Distribution(median=2.0, sigma=0.5, high=9.0), runaway=0.1),
]


def lines(*changes: tuple[int, Line]) -> list[Line]:
    changed = list(LINES)
    for at, line in changes:
        changed[at] = line
    return changed


def test_what_is_written_is_read() -> None:
    trace = assembled(LINES)
    assert read_trace(write_trace(trace)) == trace
    assert trace.lines() == LINES
    assert [len(script.turns) for script in trace.scripts] == [2]


def test_defaults_are_left_out() -> None:
    turn = write_trace(assembled([Header(name="t"), Agent(name="b"), Session(agent="b", session="s")])).split(b"\n")
    assert turn[1:3] == [b'{"line":"agent","name":"b"}', b'{"line":"session","agent":"b","session":"s"}']


def test_a_bad_line_is_named() -> None:
    content = write_trace(assembled(LINES)).replace(b'"output_tokens":7', b'"output_tokens":0')
    with pytest.raises(ServeError, match=r"^here:5: .*output_tokens"):
        read_trace(content, "here")


def test_an_unknown_key_is_an_error() -> None:
    content = write_trace(assembled(LINES)).replace(b'"until_s":30.0', b'"until_s":30.0,"untill":1')
    with pytest.raises(ServeError, match="untill"):
        read_trace(content)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ([], "header"),
        (LINES[1:], "header"),
        ([*LINES, Header(name="again")], "second header"),
        (lines((0, Header(name="t", version=2))), "version 2"),
        ([*LINES, Agent(name="a")], "second agent"),
        ([*LINES, Session(agent="c", session="s")], "not there"),
        ([*LINES, Generator(agent="a", session="s", until_s=1.0)], "second session"),
        ([*LINES, Turn(agent="b", session="s", output_tokens=1)], "not there"),
        (lines((4, Turn(agent="a", session="s", shape=PromptShape.BRANCH, output_tokens=1))), "branch_at"),
        (
            lines((4, Turn(agent="a", session="s", shape=PromptShape.REPEAT, new=(Piece(tokens=1),), output_tokens=1))),
            "repeats",
        ),
        (lines((4, Turn(agent="a", session="s", carrier_tokens=1, output_tokens=1))), "carrier"),
    ],
)
def test_lines_that_do_not_belong_together(bad: list[Line], complaint: str) -> None:
    with pytest.raises(ServeError, match=complaint):
        assembled(bad)

"""Server-sent events: cut anywhere, they are the same events and the same bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import UpstreamError
from governor.wire import sse
from governor.wire.sse import SseEvent, SseSplitter

_LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
_LINES = st.sampled_from(
    ["data: x", "data:x", "data:", "data", "data: é🌍", ": comment", ":", "event: ping", "id: 7", "data:  two", "junk"]
)
_EVENTS = st.lists(st.tuples(st.lists(_LINES, min_size=1, max_size=4), _LINE_ENDS), max_size=6)


def _bytes(events: list[tuple[list[str], str]]) -> bytes:
    return "".join("".join(line + end for line in lines) + end for lines, end in events).encode()


def _data(lines: list[str]) -> bytes | None:
    """By the letter of the standard."""
    fields = [line.partition(":") for line in lines if not line.startswith(":")]
    found = [value.removeprefix(" ").encode() for name, _, value in fields if name == "data"]
    return b"\n".join(found) if found else None


def _fed(stream: bytes, cuts: list[int]) -> tuple[list[SseEvent], bytes]:
    splitter, events = SseSplitter(), list[SseEvent]()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        events += splitter.feed(stream[start:end])
    return events, splitter.rest


@given(_EVENTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([b"", b"data: unfinished"]))
def test_any_chunking_gives_the_same_events_and_all_bytes(
    written: list[tuple[list[str], str]], cuts: list[int], tail: bytes
) -> None:
    stream = _bytes(written) + tail
    events, rest = _fed(stream, cuts)
    assert b"".join(event.raw for event in events) + rest == stream
    whole, whole_rest = _fed(stream, [])
    # A CRLF cut in two may close an event one line end early; what the events say does not depend on it.
    said = [event.data for event in events if event.data is not None]
    assert said == [event.data for event in whole if event.data is not None]
    assert said == [data for lines, _ in written if (data := _data(lines)) is not None]
    assert rest.lstrip(b"\r\n") == whole_rest.lstrip(b"\r\n") == tail


@given(_EVENTS)
def test_byte_by_byte(written: list[tuple[list[str], str]]) -> None:
    stream = _bytes(written)
    events, rest = _fed(stream, list(range(len(stream))))
    assert b"".join(event.raw for event in events) + rest == stream


@pytest.mark.parametrize(
    ("raw", "is_comment"),
    [(b": a\n\n", True), (b":\r\n: b\r\n\r\n", True), (b"event: ping\n\n", False), (b"data: x\n\n", False)],
)
def test_comment(raw: bytes, is_comment: bool) -> None:
    (event,) = SseSplitter().feed(raw)
    assert event.is_comment is is_comment


def test_an_event_without_an_end_is_refused() -> None:
    splitter = SseSplitter()
    piece = b"x" * (sse.MAX_EVENT_BYTES // 4)
    for _ in range(4):
        assert splitter.feed(piece) == []
    with pytest.raises(UpstreamError, match="without an end"):
        splitter.feed(b"x")


@given(st.text(alphabet=st.characters(blacklist_characters="\r\n")), st.none() | st.sampled_from(["error", "ping"]))
def test_encoded_is_read_back(text: str, name: str | None) -> None:
    (event,) = SseSplitter().feed(sse.encode(text.encode("utf-8", "replace"), name))
    assert event.data == text.encode("utf-8", "replace")


def test_keepalive_is_a_comment() -> None:
    (event,) = SseSplitter().feed(sse.KEEPALIVE_COMMENT)
    assert event.is_comment


def test_a_comment_is_one_line_of_ascii_whatever_it_is_made_of() -> None:
    assert sse.comment("waiting 1 of 2: x") == b": waiting 1 of 2: x\n\n"
    made = sse.comment("a\nb\r\ndata: c\x1b ü\u2028")
    assert made == b": a?b??data: c? ??\n\n"
    (event,) = SseSplitter().feed(made)
    assert event.is_comment

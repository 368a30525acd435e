"""The recall tool: where it stands in a request, what a model may ask for, how much of a text comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.compress import recall
from governor.compress.left_text import left_text
from governor.compress.recall import NAME, TOOL, Wanted
from governor.compress.recall_offers import RecallOffers
from governor.types import AgentName, SessionId
from governor.wire.request import parse
from governor.wire.spliced import OwnCall
from serve.engine import Endpoint

HANDLE = "gov-0123456789abcdef"
TEXT = "".join(f"line {number}\n" for number in range(5000))
A, B = AgentName("a"), AgentName("b")


def size_of(text: str) -> int:
    return len(text) // 4 + 5


def request(tools: str, **fields: Any) -> Any:
    more = "".join(f', "{name}": {value}' for name, value in fields.items())
    body = f'{{"model": "m", "tools": {tools}, "messages": [{{"role": "user", "content": "hi"}}]{more}}}'
    return parse(Endpoint.CHAT, body.encode())


def test_it_stands_last_and_all_else_is_as_it_was() -> None:
    asked = request('[{"type": "function",  "function": {"name": "x"}} ]')
    longer = recall.with_tool(asked)
    wanted = asked.json.body.replace(b"}} ]", b"}}," + TOOL + b"]")
    assert longer.json.body == wanted
    assert recall.names_of(longer) == {"x", NAME}
    assert recall.with_tool(asked).json.body == wanted


@pytest.mark.parametrize(
    ("tools", "fields", "offered"),
    [
        ('[{"type": "function", "function": {"name": "x"}}]', {}, True),
        ('[{"type": "function", "function": {"name": "x"}}]', {"tool_choice": '"none"'}, True),
        ('[{"type": "function", "function": {"name": "x"}}]', {"n": 2}, False),
        ("[]", {}, False),
        ("null", {}, False),
    ],
)
def test_where_it_can_be_offered(tools: str, fields: dict[str, Any], offered: bool) -> None:
    assert recall.can_offer(request(tools, **fields)) is offered


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (f'{{"handle": "{HANDLE}"}}', Wanted(HANDLE)),
        (f'{{"handle": "[left out: {HANDLE}]", "offset": 5, "limit": 9}}', Wanted(HANDLE, 5, 9)),
        (f'{{"handle": "{HANDLE}", "offset": -5, "limit": 0}}', Wanted(HANDLE, -5)),
        (f'{{"handle": "{HANDLE}", "offset": "5", "limit": true}}', Wanted(HANDLE)),
    ],
)
def test_what_is_asked_for(arguments: str, wanted: Wanted) -> None:
    assert recall.wanted(arguments) == wanted


@given(st.one_of(st.text(), st.text().map(lambda text: f'{{"handle": "{text}"}}'), st.just("[" * 100_000)))
def test_any_arguments_give_a_sentence(arguments: str) -> None:
    said = recall.wanted(arguments)
    assert isinstance(said, str)
    assert len(said) < 200
    assert isinstance(msgspec.json.decode(msgspec.json.decode(
        recall.answered_message("", "", [OwnCall("a", arguments)], ["a"]))["tool_calls"][0]["function"]["arguments"]
    ), dict)  # fmt: skip


def test_a_short_text_comes_as_it_is() -> None:
    assert recall.excerpt("short", Wanted(HANDLE), size_of, 100) == "short"


def test_of_a_long_one_head_and_tail_and_the_way_to_the_rest() -> None:
    part = recall.excerpt(TEXT, Wanted(HANDLE), size_of, 100_000)
    assert part is not None
    first, _, rest = part.partition("\n[")
    assert TEXT.startswith(first)
    assert TEXT.endswith(part.rpartition("]\n")[2])
    assert f"of {len(TEXT):,} characters left out here; to read them: offset={len(first)}]" in rest


def test_all_of_it_can_be_had_in_parts() -> None:
    got, offset = "", 0
    for _ in range(100):
        part = recall.excerpt(TEXT, Wanted(HANDLE, offset), size_of, 2000)
        assert part is not None
        text, _, note = part.rpartition("\n[")
        got += text
        if "offset=" not in note:
            break
        offset = int(note.rpartition("offset=")[2][:-1])
    assert got == TEXT


def test_from_the_end_and_beyond_it() -> None:
    part = recall.excerpt(TEXT, Wanted(HANDLE, -10), size_of, 2000)
    assert part is not None
    assert part.startswith(TEXT[-10:])
    assert recall.excerpt(TEXT, Wanted(HANDLE, 10**9), size_of, 2000) == (
        f"\n[characters {len(TEXT):,} to {len(TEXT):,} of {len(TEXT):,}]"
    )


@given(
    st.text(min_size=1, max_size=5000), st.integers(-6000, 6000) | st.none(), st.integers(1, 10**9) | st.none(),
    st.integers(0, 3000),
)  # fmt: skip
def test_it_never_exceeds_its_room(text: str, offset: int | None, limit: int | None, room: int) -> None:
    part = recall.excerpt(text, Wanted(HANDLE, offset, limit), size_of, room)
    assert part is None or size_of(part) <= room
    assert part is not None or room < size_of("x" * 400)


def test_a_result_is_always_json() -> None:
    told = msgspec.json.decode(recall.result_message("a", "half \ud83d of a pair"))
    assert told == {"role": "tool", "tool_call_id": "a", "content": "half ? of a pair"}


def test_messages_that_left_are_read_role_by_role() -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]},
    ]
    text = left_text(msgspec.json.encode(messages))
    assert text.startswith("--- user\nLook.\n[image_url, ")
    assert text.endswith("--- assistant\n-> ls({})")
    assert left_text(b"{half") == "{half"
    assert left_text(b'"\\u001b[1m"') == "\x1b[1m"


def test_offers_are_kept_for_a_sessions_life() -> None:
    offers, session = RecallOffers(), SessionId("s")
    assert offers.is_offered(A, session, wanted=True)
    assert offers.is_offered(A, session, wanted=False)
    assert not offers.is_offered(B, session, wanted=False)
    assert not offers.is_offered(B, session, wanted=True)


def test_offers_are_bounded_and_the_one_used_longest_ago_is_forgotten() -> None:
    offers = RecallOffers(most_sessions=2)
    for name in ("one", "two"):
        offers.is_offered(A, SessionId(name), wanted=True)
    offers.is_offered(A, SessionId("one"), wanted=False)
    offers.is_offered(A, SessionId("three"), wanted=True)
    assert len(offers) == 2
    assert offers.is_offered(A, SessionId("one"), wanted=False)
    assert not offers.is_offered(A, SessionId("two"), wanted=False), "forgotten, so the policy counts"

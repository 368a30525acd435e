"""Nothing that a later turn may need is lost: needles in old rounds, identifiers that come again."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from bench.compress import size_of
from bench.needle_methods import HANDLES, once, while_it_grows
from bench.needle_places import Compressed, Place, places, protected_changed, reachable, rules_broken
from bench.needle_sessions import NeedleKind, Session, recorded_sessions, sessions, small_sessions

ALL = {session.name: session for session in (*sessions(), *recorded_sessions())}
TARGETS = [0.75, 0.5, 0.25, 0.15]
# What names something: paths, hexadecimal numbers, names with digits in them, numbers of five digits or more.
IDENTIFIER = re.compile(
    rb"(?<![\w./-])(?:[\w-]+/[\w./-]+\.\w+|(?=\w*\d)(?=\w*[a-z_])\w{6,}|\d{5,})(?![\w/-])", re.IGNORECASE
)


@cache
def made_of(name: str, target: float | None) -> Compressed:
    """Once to a target, or, without one, again and again as the session grows."""
    messages = ALL[name].messages
    made = while_it_grows(messages, 0.3) if target is None else once(messages, int(_tokens(messages) * target))
    assert made is not None
    return made


@pytest.mark.parametrize("target", [*TARGETS, None])
@pytest.mark.parametrize("name", ALL)
class TestEverySession:
    def test_needles_are_in_the_prompt_or_behind_a_handle(self, name: str, target: float | None) -> None:
        session = ALL[name]
        found = places(session, made_of(name, target))
        lost = [needle for needle in session.needles if found[needle.value] is Place.LOST]
        assert {needle.kind for needle in lost} <= {NeedleKind.THOUGHT}
        assert {found[needle.value] for needle in session.needles} >= {Place.PROMPT} or target is None

    def test_what_later_turns_name_is_there(self, name: str, target: float | None) -> None:
        session, made = ALL[name], made_of(name, target)
        prompt = b"\n".join(made.messages)
        behind = reachable(prompt, made.archive, made.handles)
        used = [needle for needle in session.needles if needle.is_used and needle.kind is not NeedleKind.THOUGHT]
        for needle in used:
            for text in (needle.key.encode(), needle.value.encode()):
                assert text in prompt or text in behind, needle

    def test_every_old_mention_of_an_identifier_used_later_is_reachable(self, name: str, target: float | None) -> None:
        """Counted, so that one mention cannot stand for another."""
        session, made = ALL[name], made_of(name, target)
        split = _end_of_old(session)
        identifiers = _identifiers(session.messages[:split]) & _identifiers(session.messages[split:])
        assert identifiers
        whole = b"\n".join(made.messages)
        whole += b"\n" + reachable(whole, made.archive, made.handles)
        before = _without_reasoning(session.messages)
        for identifier in identifiers:
            assert whole.count(identifier) >= before.count(identifier), identifier

    def test_it_is_a_chat_with_all_that_is_protected(self, name: str, target: float | None) -> None:
        session, made = ALL[name], made_of(name, target)
        assert rules_broken(session, made) == ()
        assert protected_changed(session, made) == 0
        if target is not None:
            assert _tokens(made.messages) <= _tokens(session.messages) * target


@pytest.mark.parametrize("name", ALL)
def test_a_growing_session_was_brought_down_more_than_once(name: str) -> None:
    assert made_of(name, None).times > 1


def test_the_sessions_have_each_needle_once_and_mention_the_used_ones_late() -> None:
    assert {session.name.partition(",")[0] for session in ALL.values()} >= {"hermes", "openclaw"}
    for session in (*ALL.values(), *small_sessions(14)):
        blob = b"\n".join(session.messages)
        assert [blob.count(needle.value.encode()) for needle in session.needles] == [1] * len(session.needles)
    for session in ALL.values():
        late = b"\n".join(session.messages[_end_of_old(session) :])
        used = [needle for needle in session.needles if needle.is_used]
        assert 0 < len(used) < len(session.needles)
        assert all(needle.key.encode() in late for needle in used)


def test_a_place_is_told_from_what_is_really_there() -> None:
    """The measure itself: a handle counts only if the prompt names it, also through another."""
    session: Session = small_sessions(1)[0]
    value = session.needles[0].value
    one, two = "gov-" + "1" * 16, "gov-" + "2" * 16

    def place(prompt: str, archive: dict[str, str]) -> Place:
        kept = {name: text.encode() for name, text in archive.items()}
        made = Compressed(messages=[prompt.encode()], archive=kept, handles=HANDLES, cpu_ms=0)
        return places(session, made)[value]

    assert place(f"it is {value}", {}) is Place.PROMPT
    assert place(f"[left out: {one}]", {one: value}) is Place.HANDLE
    assert place(f"[left out: {one}]", {one: f"see {two}", two: value}) is Place.HANDLE
    assert place(f"[left out: {one}]", {one: "nothing", two: value}) is Place.LOST
    assert place("nothing", {one: value}) is Place.LOST
    assert place(f"[left out: {one}]", {}) is Place.LOST


def _end_of_old(session: Session) -> int:
    """Where the messages with needles end."""
    values = [needle.value.encode() for needle in session.needles]
    return 1 + max(at for at, raw in enumerate(session.messages) if any(value in raw for value in values))


def _tokens(messages: Sequence[bytes]) -> int:
    return sum(map(size_of, messages))


def _identifiers(messages: Sequence[bytes]) -> set[bytes]:
    return set(IDENTIFIER.findall(_without_reasoning(messages)))


def _without_reasoning(messages: Sequence[bytes]) -> bytes:
    """Reasoning is the one thing that may go; ids of calls are no text."""

    def said(raw: bytes) -> bytes:
        fields: dict[str, Any] = json.loads(raw)
        texts = [fields.get("content"), *(call["function"]["arguments"] for call in fields.get("tool_calls") or ())]
        return json.dumps(texts, ensure_ascii=False).encode()

    return b"\n".join(map(said, messages))

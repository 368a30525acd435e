"""Where a stopped answer is cut: by what was shown of the text of its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.gateway.seams import find_seam
from governor.wire.seam import Cut, Kind, Said, Shown, cut_at, settled, shown_in

R, T = Kind.REASONING, Kind.TEXT


def said(*parts: tuple[Kind, str]) -> list[Said]:
    return [Said(kind, text) for kind, text in parts]


@pytest.mark.parametrize(
    ("written", "shown", "rest"),
    [
        ("All of it", said((T, "All of it")), ""),
        ("Some <tool_call>\n<fun", said((T, "Some")), " <tool_call>\n<fun"),
        ("Some <tool_call>\n<fun", said((T, "Some ")), "<tool_call>\n<fun"),
        ("Hm.\n</think>\n\nYes, <", said((R, "Hm."), (T, "Yes, ")), "<"),
        ("Hm.\n</think>\n\nYes", said((R, "Hm.\n"), (T, "\n\nYes")), ""),
        ("Hm.</think>\n\n", said((R, "Hm.")), "</think>\n\n"),
        ("Hm.</think>\n\n", said((R, "Hm."), (T, "\n\n")), ""),
        ("<think>\nHm. I", said((R, "Hm. ")), "I"),
        ("</think>\n\nYes", said((T, "\n\nYes")), ""),
        ("x < y </think> 1 < 2", said((R, "x < y "), (T, " 1 <")), " 2"),
        ("[THINK]a[/THINK]b", said((R, "a"), (T, "b")), ""),
        ("ha ha ha ha", said((T, "ha ha")), " ha ha"),
        ("anything", said(), "anything"),
    ],
)
def test_what_was_shown_is_found_from_the_beginning(written: str, shown: list[Said], rest: str) -> None:
    assert shown_in(written, shown) == Shown(len(written) - len(rest))


def test_what_a_parser_has_changed_is_found_by_its_end() -> None:
    assert shown_in("one two three <", said((T, "ONE two three "))) is None
    long = "and so on, for more than two hundred characters; " * 5
    assert shown_in(f"one {long}<", said((T, f"ONE {long}"))) == Shown(4 + len(long), proven=False)


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("done.", "done."),
        ("done. \n", "done."),
        ("caf\N{REPLACEMENT CHARACTER}", "caf"),
        ("x \N{REPLACEMENT CHARACTER}\n", "x"),
        ("\n\n", ""),
    ],
)
def test_an_end_that_may_change_is_left_out(text: str, stays: str) -> None:
    assert settled(text) == stays


def test_the_fewest_tokens_are_kept() -> None:
    ends = ["", "Hi", "Hi", "Hi there", "Hi there"]  # the second and the last are special tokens
    assert cut_at(2, ends, 10, 0) == Cut(11)
    assert cut_at(8, ends, 10, 0) == Cut(13)
    assert cut_at(0, ends, 10, 0) == Cut(10)
    assert cut_at(12, ends, 10, 10) == Cut(11)
    assert cut_at(9, ends, 10, 10) is None


def test_a_token_that_was_shown_in_part_is_shown_whole_or_again() -> None:
    half = "\N{REPLACEMENT CHARACTER}"
    assert cut_at(3, ["", "ab", f"ab {half}", "ab \N{PARTY POPPER}"], 0, 0) == Cut(3, more="\N{PARTY POPPER}")
    assert cut_at(3, ["", "ab", f"ab {half}"], 0, 0) == Cut(1, again=" ")


class Bytes:
    """An engine with a token for each byte, and one that shows nothing."""

    NOTHING = 256

    def __init__(self) -> None:
        self.asked = 0

    async def texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        self.asked += len(ids)
        return [bytes(token for token in each if token != self.NOTHING).decode(errors="replace") for each in ids]


@given(st.text("aü東🎉< \n", min_size=1, max_size=200), st.data())
def test_tokens_and_what_was_shown_fit_whatever_was_held_back(text: str, data: st.DataObject) -> None:
    """Nothing is lost, nothing is doubled: what was shown is what the kept tokens say."""
    shown = text[: data.draw(st.integers(1, len(text)))]
    tokens = list(text.encode())
    stop = data.draw(st.integers(len(shown.encode()), len(tokens)))
    ids = [*tokens[:stop], *data.draw(st.lists(st.just(Bytes.NOTHING), max_size=2))]
    seam = asyncio.run(find_seam(Bytes(), ids, said((T, shown))))
    assert seam.proven
    assert bytes(ids[: seam.cut.kept]).decode() == shown
    assert (seam.cut.more, seam.cut.again) == ("", "")


def test_a_long_call_that_nobody_has_seen_is_cut_off_with_few_questions() -> None:
    hidden = "<tool_call>" + "a long argument, " * 2000
    continuation = Bytes()
    seam = asyncio.run(find_seam(continuation, list(f"Now. {hidden}".encode()), said((T, "Now. "))))
    assert seam.cut == Cut(5)
    assert continuation.asked < 200


def test_nothing_shown_keeps_nothing() -> None:
    seam = asyncio.run(find_seam(Bytes(), list(b"<tool_call>"), []))
    assert (seam.cut, seam.proven) == (Cut(0), True)

"""Which differences between two texts are clocks, counters and ids, and how they are shown without what they say."""

from __future__ import annotations

import pytest

from governor.tokens.volatile import Change, shape_of, volatile_changes

SAME_BUT = [
    ("It is 9:59 AM.", "It is 10:00 PM.", [("9:59", "10:00"), ("AM", "PM")]),
    ("Mon, 2026-11-30", "Tue, 2026-12-01", [("Mon", "Tue"), ("2026-11-30", "2026-12-01")]),
    (
        "NOTES [40% - 1,600/4,000]\nrun 7\n",
        "NOTES [41% - 1,640/4,000]\nrun 8\n",
        [("40", "41"), ("1,600", "1,640"), ("7", "8")],
    ),
    ("id 3f2a-99 end", "id beef7 end", [("3f2a-99", "beef7")]),
    ("sess-%s1" % ("e" * 62), "sess-%s2" % ("e" * 62), [("e" * 62 + "1", "e" * 62 + "2")]),
    ("\tday 1\u00a0of 2", "\tday 2\u00a0of 2", [("1", "2")]),
    ("", "", []),
    ("1 1 1", "1 1 1", []),
]


@pytest.mark.parametrize(("old", "new", "changes"), SAME_BUT)
def test_volatile(old: str, new: str, changes: list[tuple[str, str]]) -> None:
    assert volatile_changes(old, new) == [Change(*pair) for pair in changes]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a 1", "b 1"),
        ("at 12:00", "at noon"),
        ("rule #", "rule 5"),
        ("rule 5", "rule"),
        ("one 5", "one  5"),
        ("one 5\n", "one 5"),
        ("one 5\nline", "one 6 line"),
        ("5 x", "5 y"),
        ("", "5"),
    ],
)
def test_anything_else(old: str, new: str) -> None:
    assert volatile_changes(old, new) is None
    assert volatile_changes(new, old) is None


@pytest.mark.parametrize(
    ("span", "shape"),
    [("12:05", "##:##"), ("sk-0f9ac", "xx-#x#xx"), ("Sept", "Sept"), ("1" * 200, "#" * 37 + "..."), ("é1", "x#")],
)
def test_a_shape_says_nothing(span: str, shape: str) -> None:
    assert shape_of(span) == shape


@pytest.mark.parametrize("long", ["a-" * 30_000, "1-" * 30_000, "1:" * 30_000, "a" * 60_000, "1" + "-" * 60_000])
def test_a_long_word_is_linear_work(long: str) -> None:
    """A square of it would take minutes."""
    assert volatile_changes(f"{long}x 1", f"{long}y 1") is None


def test_a_text_that_is_another_one_altogether_is_not_searched() -> None:
    old, new = ("".join(f"{number} word\n" for number in range(start, start + 40_000)) for start in (0, 1))
    assert volatile_changes(old, new) is None
    assert volatile_changes(old + "at 1", old + "at 2") == [Change("1", "2")]

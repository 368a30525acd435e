"""What in a system prompt changes from turn to turn without a change of meaning: clocks, dates, counters, ids. Pure.

It lives here because a broken prefix is named by it (``breaks.py``), and because what may be pinned must be the same
notion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_VOLATILE = re.compile(
    r"(\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
    r"|\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b"
    r"|\b[ap]m\b|\b(?=[a-f-]{0,64}+[0-9])[0-9a-f][0-9a-f-]{3,}\b|\d+(?:[.,:]\d+)*)",
    re.IGNORECASE,
)
"""No match holds white space, and white space is a word's boundary: so texts may be compared word by word. Of an id a
digit is looked for in as many characters as a SHA-256 has, so that a long word without one costs no square of it."""
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_MOST_SHOWN = 40
_MOST_SEARCHED = 128 * 1024


class Change(msgspec.Struct, frozen=True):
    """A volatile span that is not what it was."""

    old: str
    new: str


def volatile_changes(old: str, new: str) -> list[Change] | None:
    """The spans in which two texts differ, in order; ``None`` if they differ in anything that is not volatile.

    Linear. Only words that differ are searched, since that takes 8 ms for 44 KB; where there are more of them than any
    clock needs, they are taken for other text.
    """
    changes: list[Change] = []
    left = _MOST_SEARCHED
    for before, now in _differing(old, new, "\n", " "):
        if before is None or now is None or (left := left - len(before) - len(now)) < 0:
            return None
        olds, news = _VOLATILE.split(before), _VOLATILE.split(now)  # what is volatile stands at the odd places
        if olds[::2] != news[::2]:
            return None
        changes += [Change(one, other) for one, other in zip(olds[1::2], news[1::2], strict=True) if one != other]
    return changes


def shape_of(span: str) -> str:
    """A volatile span without what it says: digits as ``#``, letters beside digits as ``x``."""
    shape = _DIGIT.sub("#", span)
    if shape != span:
        shape = _LETTER.sub("x", shape)
    return shape if len(shape) <= _MOST_SHOWN else f"{shape[: _MOST_SHOWN - 3]}..."


def _differing(old: str, new: str, separator: str, *finer: str) -> Iterator[tuple[str | None, str | None]]:
    """The parts that differ, as fine as the separators go; a pair of ``None`` where their numbers differ."""
    olds, news = old.split(separator), new.split(separator)
    if len(olds) != len(news):
        yield None, None
        return
    for one, other in zip(olds, news, strict=True):
        if one == other:
            continue
        if finer:
            yield from _differing(one, other, *finer)
        else:
            yield one, other

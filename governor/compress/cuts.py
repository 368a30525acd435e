"""Cutting text without cutting a character, and the lines that say what is missing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

_JOINER = "\u200d"
_OWN = re.compile(r"gov-[0-9a-f]{16}\]$")
_OWN_MOST_CHARS = 500


class Note(NamedTuple):
    """Writes what was left out. All that is missing from one message has one handle."""

    handle: str

    def about(self, what: str) -> str:
        return f"[{what} left out: {self.handle}]"


TextTrim = Callable[[str, int, Note], str]
"""Leaves about so many characters of a text."""


def is_own(text: str) -> bool:
    """The text is a line of ours in place of another; it is not replaced again."""
    return len(text) <= _OWN_MOST_CHARS and text.startswith("[") and _OWN.search(text) is not None


def head(text: str, most_chars: int) -> str:
    """The beginning of ``text``, at most so many code points, ending between two characters as a reader sees them."""
    return text[: _boundary(text, max(0, most_chars))]


def tail(text: str, most_chars: int) -> str:
    """The end of ``text``, likewise."""
    start = max(0, len(text) - max(0, most_chars))
    while start < len(text) and not _is_boundary(text, start):
        start += 1
    return text[start:]


def middle_out(text: str, most_chars: int, note: Note) -> str:
    """Head and tail of ``text`` around a note. It is longer than asked for by the note."""
    if len(text) <= most_chars:
        return text
    first = head(text, most_chars * 2 // 3)
    last = tail(text, most_chars - len(first))
    missing = len(text) - len(first) - len(last)
    return f"{first} {note.about(f'{missing:,} characters')} {last}"


def shortened(text: str, most_chars: int) -> str:
    """One line that begins as ``text`` does."""
    line = " ".join(text[: most_chars * 2].split())
    return line if len(line) <= most_chars and len(text) <= most_chars * 2 else f"{head(line, most_chars - 1)}…"


def _boundary(text: str, at: int) -> int:
    if at >= len(text):
        return len(text)
    while at > 0 and not _is_boundary(text, at):
        at -= 1
    return at


def _is_boundary(text: str, at: int) -> bool:
    """Whether a reader's character begins at ``at``: no combining mark, variation, skin tone or joined emoji, no second
    half of a flag, no line feed of a pair (the common part of Unicode UAX #29)."""
    if at <= 0 or at >= len(text):
        return True
    here, before = text[at], text[at - 1]
    if here < "\u0300":
        return not (here == "\n" and before == "\r")
    if _JOINER in {here, before} or "\ufe00" <= here <= "\ufe0f" or "\U0001f3fb" <= here <= "\U0001f3ff":
        return False
    if _is_flag(here) and _is_flag(before):
        run = 0
        while at - 1 - run >= 0 and _is_flag(text[at - 1 - run]):
            run += 1
        return run % 2 == 0
    return unicodedata.category(here) not in {"Mn", "Me", "Mc"}


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"

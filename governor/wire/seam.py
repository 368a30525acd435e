"""Where in an answer's own text its reader is. Pure.

An engine that is stopped in the middle of an answer has written tokens that nobody has seen: half a character, the
beginning of a marker that its parsers hold back, a call whose name is not complete. What was shown is a part of the
text of the tokens, in the same order; between two kinds of it stands a marker (``</think>``), and line breaks around a
marker may be left out. So the place up to which all was shown can be found without knowing the markers, character by
character, from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

_TAG = re.compile(r"\s*(?:<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\])")
_SPACE = re.compile(r"\s*")
_MOST_TAGS = 2
_TAIL_CHARS = 200

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Kind(Enum):
    """What a piece of an answer is to its reader."""

    REASONING = "reasoning_content"
    TEXT = "content"


class Said:
    """Something that was shown, all of one kind. It grows piece by piece and is put together when it is asked for."""

    __slots__ = ("_pieces", "kind")

    def __init__(self, kind: Kind, text: str) -> None:
        self.kind = kind
        self._pieces = [text]

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    @text.setter
    def text(self, text: str) -> None:
        self._pieces = [text]

    def append(self, text: str) -> None:
        self._pieces.append(text)

    def __repr__(self) -> str:
        return f"Said({self.kind}, {self.text!r})"


class Shown(msgspec.Struct, frozen=True):
    """How far an answer was shown."""

    chars: int
    """Of the text of its tokens."""
    proven: bool = True
    """All of it was found again, not its end alone."""


def add(said: list[Said], kind: Kind, text: str) -> None:
    """Append what was shown; pieces of one kind are joined."""
    if text and said and said[-1].kind is kind:
        said[-1].append(text)
    elif text:
        said.append(Said(kind, text))


def settled(text: str) -> str:
    """``text`` without an end that more tokens could change: half a character, white space before a marker."""
    end = len(text)
    while end and (text[end - 1].isspace() or text[end - 1] == REPLACEMENT):
        end -= 1
    return text[:end]


def shown_in(written: str, said: Sequence[Said]) -> Shown | None:
    """The place in ``written``, the text of all tokens, up to which it was shown; ``None`` if nothing fits."""
    at = 0
    for number, each in enumerate(said):
        end = _end_of(each.text, written, at, after_another=number > 0)
        if end is None:
            tail = said[-1].text[-_TAIL_CHARS:]
            found = written.rfind(tail)
            return None if found < 0 else Shown(found + len(tail), proven=False)
        at = end
    return Shown(at)


def _end_of(text: str, written: str, at: int, *, after_another: bool) -> int | None:
    """Where ``text`` ends. Between two kinds a marker is likelier than none, so it is looked for first."""
    starts = list(_starts(written, at))
    if after_another:
        starts = [*starts[1:], starts[0]]
    for start in starts:
        if written.startswith(text, start):
            return start + len(text)
    bare = text.lstrip()
    for start in starts:
        begin = _space_end(written, start)
        if bare and written.startswith(bare, begin):
            return begin + len(bare)
    return None


def _starts(written: str, at: int) -> Iterator[int]:
    """Here, and behind each marker that follows."""
    yield at
    for _ in range(_MOST_TAGS):
        tag = _TAG.match(written, at)
        if tag is None:
            return
        at = tag.end()
        yield at


def _space_end(written: str, at: int) -> int:
    space = _SPACE.match(written, at)
    return at if space is None else space.end()


class Cut(msgspec.Struct, frozen=True):
    """Where the tokens of a stopped answer are cut, so that what follows fits what was shown."""

    kept: int
    """Tokens."""
    more: str = ""
    """Shown by none of them yet, and by nothing that follows: a token that was shown in part."""
    again: str = ""
    """Shown already, and will be shown by what follows: a token that was shown in part and is dropped."""


def cut_at(chars: int, ends: Sequence[str], first: int, before: int) -> Cut | None:
    """The cut after ``chars`` characters.

    ``ends[i]``: the text of some tokens up to the one numbered ``first + i``; ``before``: the characters of the answer
    before that text. ``None``: the place is before all of these. The fewest tokens are kept that show everything, so
    one that ends the answer, or is half a character, is not among them.
    """
    if before + len(ends[0]) > chars:
        return None
    for index, text in enumerate(ends):
        if before + len(text) == chars and not text.endswith(REPLACEMENT):
            return Cut(first + index)
    kept, again = 0, ""
    for index, text in enumerate(ends):
        if text.endswith(REPLACEMENT):
            continue
        if before + len(text) > chars:
            return Cut(first + index, more=text[chars - before :])
        kept, again = first + index, ends[-1][len(text) : chars - before]
    return Cut(kept, again=again)

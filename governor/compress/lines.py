"""Cutting down a text of lines: head, tail, and what stands out between them.

Short texts are first rid of lines that differ only in their digits. Nothing is moved: what stays keeps its order, each
gap says how many lines are missing, and the first where all of them are. The text is searched, never split, so that a
result of many megabytes costs a look at it and no copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from governor.compress.cuts import Note, TextTrim, middle_out
from governor.compress.kinds import SIGNATURE, Kind

_DIGITS = {ord(digit): None for digit in "0123456789"}
_FEWEST_ALIKE = 4
_COLLAPSED_CHARS = 65_536
"""Of longer texts head and tail are kept either way, and what is alike in between goes with the rest."""
_GAP_CHARS = 14
"""What the line in place of a gap takes; the first one takes a handle more."""
_HANDLE_CHARS = 40
_LEAST_LINE_CHARS = 80
_HITS = 256
"""More lines with one word of trouble than this are not looked for, from either end."""
ALARMS = ("rror", "RROR", "FAIL", "ailed", "ailure", "xception", "raceback", "anic", "atal", "ATAL", "arning", "WARN")
"""Parts of words that tell trouble, without their first letter where its case varies."""
_CHANGE = re.compile(r"^(?:[-+]|@@|diff )[^\n]*", re.MULTILINE)
_DECLARATION = re.compile(f"^(?:{SIGNATURE.pattern})[^\n]*", re.MULTILINE)

Span = tuple[int, int]
"""Where a line begins and ends in a text, its line feed not included."""


class Shares(NamedTuple):
    """How the room is divided; the rest is for lines that stand out, as far as there are any."""

    head: float
    tail: float


_SHARES = {
    Kind.LOG: Shares(0.3, 0.4),
    Kind.TABLE: Shares(0.6, 0.2),
    Kind.CODE: Shares(0.3, 0.15),
    Kind.DIFF: Shares(0.15, 0.05),
}


def trim_lines(text: str, keep_chars: int, kind: Kind, note: Note, trim_line: TextTrim = middle_out) -> str:
    """``text`` with about ``keep_chars`` characters left. The same text if it has no more. ``trim_line`` cuts a line
    that is too long by itself."""
    if len(text) <= keep_chars:
        return text
    if text.count("\n") < 2:
        return middle_out(text, keep_chars, note)
    if kind is Kind.LOG and len(text) <= _COLLAPSED_CHARS:
        text = "\n".join(_collapsed(text.split("\n"), text.translate(_DIGITS).split("\n")))
        if len(text) <= keep_chars:
            return f"{text}\n{note.about('similar lines')}"
    longest = max(_LEAST_LINE_CHARS, keep_chars // 4)
    spans = _chosen(text, keep_chars - _HANDLE_CHARS - 2 * _GAP_CHARS, longest, kind)
    return "\n".join(_with_gaps(text, spans, longest - _HANDLE_CHARS, note, trim_line))


def _collapsed(lines: Sequence[str], without_digits: Sequence[str]) -> Iterator[str]:
    """Runs of lines that are alike but for their digits, each as its first, a count, its last."""
    start = 0
    for index in range(1, len(lines) + 1):
        if index < len(lines) and without_digits[index] == without_digits[start]:
            continue
        run = index - start
        if run < _FEWEST_ALIKE:
            yield from lines[start:index]
        else:
            yield lines[start]
            yield f"[{run - 2:,} similar lines]"
            yield lines[index - 1]
        start = index


def _chosen(text: str, room: int, longest: int, kind: Kind) -> list[Span]:
    """The lines that fit, in order. What stands out has its part of the room; what it leaves of it is for the ends."""
    shares = _SHARES[kind]
    begin = text.find("\n", int(room * shares.head)) + 1
    end = text.rfind("\n", begin, len(text) - int(room * shares.tail))
    chosen: set[Span] = set()
    left = int(room * (1 - shares.head - shares.tail))
    for span in _standing_out(text, begin, end, kind) if begin < end else ():
        cost = _cost(span, longest) + _GAP_CHARS
        if cost > left:
            break
        left -= cost
        chosen.add(span)
    room = int(room * (shares.head + shares.tail)) + left
    first = _taken(_from_start(text), room * shares.head / (shares.head + shares.tail), longest)
    room -= sum(_cost(span, longest) for span in first)
    after_first = first[-1][1] + 1 if first else 0
    last = _taken(_from_end(text, after_first), room, longest) if after_first < len(text) else []
    return sorted(chosen.union(first, last))


def _cost(span: Span, longest: int) -> int:
    return min(span[1] - span[0], longest) + 1


def _taken(spans: Iterator[Span], room: float, longest: int) -> list[Span]:
    taken = []
    for span in spans:
        room -= _cost(span, longest)
        if room < 0:
            break
        taken.append(span)
    return taken


def _from_start(text: str) -> Iterator[Span]:
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield start, end
        start = end + 1
    yield start, len(text)


def _from_end(text: str, begin: int) -> Iterator[Span]:
    end = len(text)
    while (start := text.rfind("\n", begin, end) + 1) > begin:
        yield start, end
        end = start - 1
    yield begin, end


def _standing_out(text: str, begin: int, end: int, kind: Kind) -> Iterator[Span]:
    match kind:
        case Kind.DIFF:
            return (found.span() for found in _CHANGE.finditer(text, begin, end))
        case Kind.CODE:
            return (found.span() for found in _DECLARATION.finditer(text, begin, end))
        case _:
            return _from_both_ends(_alarming(text, begin, end))


def _alarming(text: str, begin: int, end: int) -> list[Span]:
    """Lines with a word of trouble. Searching the text for each word is ten times as fast as asking each line."""
    found: set[Span] = set()
    for word in ALARMS:
        low, high = begin, end
        for _ in range(_HITS):
            at = text.find(word, low, high)
            if at < 0:
                break
            first = _line_at(text, at, begin, end)
            last = _line_at(text, text.rfind(word, at, high), begin, end)
            found.update((first, last))
            low, high = first[1], max(first[1], last[0])
    return sorted(found)


def _line_at(text: str, at: int, begin: int, end: int) -> Span:
    stop = text.find("\n", at, end)
    return max(begin, text.rfind("\n", begin, at) + 1), end if stop < 0 else stop


def _from_both_ends(spans: Sequence[Span]) -> Iterator[Span]:
    """First, last, second, last but one, ...: the first trouble is often the cause, the last one the state."""
    low, high = 0, len(spans) - 1
    while low <= high:
        yield spans[low]
        if low < high:
            yield spans[high]
        low, high = low + 1, high - 1


def _with_gaps(text: str, spans: Sequence[Span], most_chars: int, note: Note, trim_line: TextTrim) -> Iterator[str]:
    end, is_said = 0, False
    for start, stop in [*spans, (len(text) + 1, len(text) + 1)]:
        if 0 < start - end <= _GAP_CHARS:
            yield text[end : start - 1]
        elif start > end:
            missing = text.count("\n", end, start - 1) + 1
            yield f"[{missing:,} lines]" if is_said else note.about(f"{missing:,} lines")
            is_said = True
        if start <= len(text):
            line = text[start:stop]
            yield line if len(line) <= most_chars else trim_line(line, most_chars, note)
        end = stop + 1

"""Cutting down a text of lines: head, tail, and what stands out between them.

Lines that differ only in their digits are collapsed first. Nothing is moved: what stays keeps its order, each gap says
how many lines are missing, and the first where all of them are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from governor.compress.cuts import Note, middle_out
from governor.compress.kinds import SIGNATURE, Kind

_DIGITS = {ord(digit): None for digit in "0123456789"}
_FEWEST_ALIKE = 4
_GAP_CHARS = 14
"""What the line in place of a gap takes; the first one takes a handle more."""
_HANDLE_CHARS = 40
_HITS = 256
"""More lines that stand out than this are not looked for, from either end."""
ALARMS = ("rror", "RROR", "FAIL", "ailed", "ailure", "xception", "raceback", "anic", "atal", "ATAL", "arning", "WARN")
"""Parts of words that tell trouble, without their first letter where its case varies."""


class Shares(NamedTuple):
    """How the room is divided; the rest is for lines that stand out."""

    head: float
    tail: float


_SHARES = {
    Kind.LOG: Shares(0.3, 0.4),
    Kind.TABLE: Shares(0.6, 0.2),
    Kind.CODE: Shares(0.3, 0.15),
    Kind.DIFF: Shares(0.15, 0.05),
}


def trim_lines(text: str, keep_chars: int, kind: Kind, note: Note) -> str:
    """``text`` with about ``keep_chars`` characters left. The same text if it has no more."""
    if len(text) <= keep_chars:
        return text
    lines = text.split("\n")
    if len(lines) < 3:
        return middle_out(text, keep_chars, note)
    if kind is Kind.LOG:
        lines = list(_collapsed(lines, text.translate(_DIGITS).split("\n")))
        if sum(map(len, lines)) + len(lines) <= keep_chars:
            return "\n".join([*lines, note.about("similar lines")])
    longest = max(80, keep_chars // 4)
    lines = [line if len(line) <= longest else middle_out(line, longest - _HANDLE_CHARS, note) for line in lines]
    kept = _chosen(lines, keep_chars - _HANDLE_CHARS - 2 * _GAP_CHARS, kind)
    return "\n".join(_with_gaps(lines, kept, note))


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


def _chosen(lines: Sequence[str], room: int, kind: Kind) -> list[int]:
    """Indices of the lines that fit, in order."""
    shares = _SHARES[kind]
    costs = [len(line) + 1 for line in lines]
    first = _fitting(range(len(lines)), costs, int(room * shares.head))
    last = _fitting(range(len(lines) - 1, len(first) - 1, -1), costs, int(room * shares.tail))
    chosen = {*first, *last}
    left = room - sum(costs[index] for index in chosen)
    between = range(len(first), len(lines) - len(last))
    standing_out = _from_both_ends(_standing_out(lines, between, kind))
    for index in standing_out:
        left -= costs[index] if {index - 1, index + 1} & chosen else costs[index] + _GAP_CHARS
        if left < 0:
            break
        chosen.add(index)
    return sorted(chosen)


def _fitting(indices: Iterable[int], costs: Sequence[int], room: int) -> list[int]:
    taken = []
    for index in indices:
        room -= costs[index]
        if room < 0:
            break
        taken.append(index)
    return taken


def _standing_out(lines: Sequence[str], between: range, kind: Kind) -> list[int]:
    if kind is Kind.DIFF:
        return [index for index in between if lines[index][:1] in {"+", "-", "@", "d"}]
    if kind is Kind.CODE:
        return [index for index in between if SIGNATURE.match(lines[index])]
    return _alarming(lines, between)


def _alarming(lines: Sequence[str], between: range) -> list[int]:
    """Lines with a word of trouble. The words are searched for in the whole text, which is ten times as fast as asking
    each line."""
    part = lines[between.start : between.stop]
    text = "\n".join(part)
    starts = [0, *accumulate(len(line) + 1 for line in part)]
    found: set[int] = set()
    for word in ALARMS:
        for find, step in ((text.find, 1), (text.rfind, -1)):
            at = find(word)
            for _ in range(_HITS):
                if at < 0:
                    break
                line = bisect_right(starts, at) - 1
                found.add(line)
                at = text.find(word, starts[line + 1]) if step > 0 else text.rfind(word, 0, starts[line])
    return sorted(between.start + line for line in found)


def _from_both_ends(indices: Sequence[int]) -> Iterator[int]:
    """First, last, second, last but one, ...: the first trouble is often the cause, the last one the state."""
    low, high = 0, len(indices) - 1
    while low <= high:
        yield indices[low]
        if low < high:
            yield indices[high]
        low, high = low + 1, high - 1


def _with_gaps(lines: Sequence[str], kept: Sequence[int], note: Note) -> Iterator[str]:
    previous, is_said = -1, False
    for index in [*kept, len(lines)]:
        missing = index - previous - 1
        if missing:
            yield f"[{missing:,} lines]" if is_said else note.about(f"{missing:,} lines")
            is_said = True
        if index < len(lines):
            yield lines[index]
        previous = index

"""On which line of a TOML text each key stands, so that an error can point there.

``tomllib`` forgets positions. It has accepted the text before this scan, so the scan only has to find keys and step
over values; it need not judge.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left

KeyPath = tuple[str, ...]

_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|("(?:[^"\\\n]|\\.)*")|'([^'\n]*)')[ \t]*""")
_STRING = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}|\'\'\'(?:[^']|'{1,2}(?!'))*'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''',
    re.DOTALL,
)
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_COMMAS = re.compile(r"(?:[ \t\r\n,]|#[^\n]*)*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) on which each key, table and implied table is first named.

    Keys of inline tables count with their own line; tables inside arrays are left out. ``text`` must be valid TOML.
    """
    return _Scan(text).lines


class _Scan:
    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._newlines = [at for at, char in enumerate(text) if char == "\n"]
        self._document()

    def _document(self) -> None:
        table: KeyPath = ()
        at = self._skip(_GAP, 0)
        while at < len(self._text):
            if self._text[at] == "[":
                brackets = 2 if self._text.startswith("[[", at) else 1
                table, end = self._key(at + brackets)
                self._note((), table, at)
                at = end + brackets
            else:
                at = self._pair(at, table)
            at = self._skip(_GAP, at)

    def _skip(self, pattern: re.Pattern[str], at: int) -> int:
        found = pattern.match(self._text, at)
        return found.end() if found else at

    def _note(self, table: KeyPath, names: KeyPath, at: int) -> None:
        line = bisect_left(self._newlines, at) + 1
        for depth in range(1, len(names) + 1):
            self.lines.setdefault((*table, *names[:depth]), line)

    def _key(self, at: int) -> tuple[KeyPath, int]:
        names: KeyPath = ()
        while True:
            part = _KEY_PART.match(self._text, at)
            if part is None:
                raise ValueError(f"no key at offset {at}")
            bare, basic, literal = part.groups()
            name: str = bare or (tomllib.loads(f"k = {basic}")["k"] if basic else literal)
            names = (*names, name)
            at = part.end()
            if not self._text.startswith(".", at):
                return names, at
            at += 1

    def _pair(self, at: int, table: KeyPath | None) -> int:
        """Step over ``key = value``; ``table`` is where the key stands, ``None`` inside an array."""
        names, end = self._key(at)
        if table is not None:
            self._note(table, names, at)
        return self._value(self._skip(_GAP, end + 1), None if table is None else (*table, *names))

    def _value(self, at: int, path: KeyPath | None) -> int:
        """Step over the value at ``at``; ``path`` is its key, ``None`` inside an array."""
        opening = self._text[at : at + 1]
        if opening == "[":
            at = self._skip(_COMMAS, at + 1)
            while not self._text.startswith("]", at):
                at = self._skip(_COMMAS, self._value(at, None))
            return at + 1
        if opening == "{":
            at = self._skip(_COMMAS, at + 1)
            while not self._text.startswith("}", at):
                at = self._skip(_COMMAS, self._pair(at, path))
            return at + 1
        if opening in ("'", '"'):
            return self._skip(_STRING, at)
        return self._skip(_BARE_VALUE, at)

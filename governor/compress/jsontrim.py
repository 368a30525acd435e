"""Cutting down JSON so that it stays JSON: fewer items of a list, fewer keys of an object, shorter texts.

Values are kept as the bytes they came in, numbers and escapes included; how much is missing stands as a text among the
items, or under the key ``…`` of an object, and once where all of it is.
"""

from __future__ import annotations

import json
from collections.abc import Container

import msgspec

from governor.compress.cuts import Note, TextTrim
from governor.compress.lines import ALARMS

_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_DEEPEST = 8
_TRIES = 8
_MOST_ITEMS = 64
_LOOKED_AT = 2000
"""Items of a list that are looked at for trouble."""
_ALARMS = tuple(word.encode() for word in ALARMS)
_MISSING_KEY = "…"


class _Shape:
    """One way to cut: how many items, how long texts."""

    def __init__(self, items: int, chars: int, note: Note, trim_text: TextTrim) -> None:
        self._items = items
        self._chars = chars
        self._note = note
        self._trim_text = trim_text

    def value(self, raw: msgspec.Raw, depth: int = 0) -> bytes:
        whole = memoryview(raw)
        first = bytes(whole[:1])
        if len(whole) <= 32 or first not in {b"[", b"{", b'"'}:
            return bytes(raw)
        if first == b'"':
            return self._text(raw)
        if depth == _DEEPEST:
            return self._said("deeper levels")
        return self._list(raw, depth) if first == b"[" else self._object(raw, depth)

    def _text(self, raw: msgspec.Raw) -> bytes:
        text = _TEXT.decode(raw)
        trimmed = text if len(text) <= self._chars else self._trim_text(text, self._chars, self._note)
        return bytes(raw) if trimmed == text else msgspec.json.encode(trimmed)

    def _list(self, raw: msgspec.Raw, depth: int) -> bytes:
        items = _LIST.decode(raw)
        if len(items) <= self._items + 1:
            return b"[" + b",".join(self.value(item, depth + 1) for item in items) + b"]"
        first = self._items - self._items // 3
        kept = {*range(first), *range(len(items) - self._items // 3, len(items))}
        words = [word for word in _ALARMS if word in bytes(raw)]
        if words:
            kept.update(_alarming(items, words, start=first, most=self._items // 4 + 1))
        out, previous = [], -1
        for index in [*sorted(kept), len(items)]:
            if index > previous + 1:
                out.append(self._said(f"{index - previous - 1:,} items"))
            if index < len(items):
                out.append(self.value(items[index], depth + 1))
            previous = index
        return b"[" + b",".join(out) + b"]"

    def _object(self, raw: msgspec.Raw, depth: int) -> bytes:
        fields = _OBJECT.decode(raw)
        names = list(fields)[: max(4, self._items)]
        out = [msgspec.json.encode(name) + b":" + self.value(fields[name], depth + 1) for name in names]
        if len(names) < len(fields):
            out.append(msgspec.json.encode(_free_key(fields)) + b":" + self._said(f"{len(fields) - len(names):,} keys"))
        return b"{" + b",".join(out) + b"}"

    @staticmethod
    def _said(what: str) -> bytes:
        return msgspec.json.encode(f"[{what}]")


def trim_json(text: str, keep_chars: int, note: Note, trim_text: TextTrim) -> str | None:
    """``text`` with at most ``keep_chars`` characters left, as far as that goes, and still JSON; ``None`` where it is
    none, or a single value.

    ``trim_text`` cuts the texts in it. Where even the smallest shape is too long, a value of the same type stands in
    that only says so.
    """
    raw = msgspec.Raw(text.encode())
    opening = text.lstrip()[:1]
    try:
        size = len(_LIST.decode(raw)) if opening == "[" else len(_OBJECT.decode(raw))
        average = len(text) // max(1, size)
        items = _MOST_ITEMS if opening == "{" else max(1, min(_MOST_ITEMS, keep_chars // max(1, average)))
        chars = keep_chars * 4 // 5
        for _ in range(_TRIES):
            trimmed = _Shape(items, chars, note, trim_text).value(_stripped(raw, text)).decode()
            if len(trimmed) <= keep_chars:
                return _with_handle(trimmed, note)
            items, chars = max(1, items // 2), max(16, chars // 2)
    except (msgspec.MsgspecError, RecursionError):
        if not _is_odd_json(text):
            return None
    what = note.about(f"JSON of {len(text):,} characters")
    return msgspec.json.encode([what] if opening == "[" else {_MISSING_KEY: what}).decode()


def _stripped(raw: msgspec.Raw, text: str) -> msgspec.Raw:
    return raw if text[:1] in {"[", "{"} else msgspec.Raw(text.strip().encode())


def _is_odd_json(text: str) -> bool:
    """JSON that our decoder refuses: half a surrogate pair, numbers beyond all bounds."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _with_handle(trimmed: str, note: Note) -> str:
    """Say where the whole is if no gap has said it."""
    if note.handle in trimmed:
        return trimmed
    said = msgspec.json.encode(note.about("the rest")).decode()
    key = msgspec.json.encode(_free_key(trimmed)).decode()
    body, closing = trimmed[:-1], trimmed[-1]
    return f"{body},{said if closing == ']' else f'{key}:{said}'}{closing}"


def _free_key(taken: Container[str]) -> str:
    key = _MISSING_KEY
    while key in taken:
        key += _MISSING_KEY
    return key


def _alarming(items: list[msgspec.Raw], words: list[bytes], *, start: int, most: int) -> list[int]:
    found: list[int] = []
    for index in range(start, min(len(items), start + _LOOKED_AT)):
        item = bytes(items[index])
        if any(word in item for word in words):
            found.append(index)
            if len(found) == most:
                break
    return found

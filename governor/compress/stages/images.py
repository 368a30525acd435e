"""Old images and other media, and long runs of base64 in old results. A part costs what the counter says, which for an
image has nothing to do with the length of its base64."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import msgspec

from governor.compress.cuts import Note
from governor.compress.draft import Draft, Edit, Left, Raw
from governor.compress.messages import edit_parts, edit_texts, is_list, read_message, size_bytes, with_fields
from governor.policy.model import CompressionStage
from governor.wire.messages import decode

_MEDIA = frozenset({"image_url", "input_image", "image", "input_audio", "audio", "video_url", "video", "file"})
_MEDIA_TYPE = re.compile(rb"data:([\w.+-]+/[\w.+-]+)[;,]")
_RUN = re.compile(r"(?:(?<![A-Za-z0-9+/=\\])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4}))[A-Za-z0-9+/]{512,}+={0,2}")
"""Tried only where a run begins, or right after an escape of JSON, so that it takes linear time."""
_LETTER = re.compile(r"[A-DF-Za-df-z]")
_CHARS_A_WORD = 48
"""Text with fewer spaces than this has long runs of something."""


def image_edits(draft: Draft) -> Iterator[Edit]:
    """Every old message that has media or base64, with a line in the place of each."""
    least = draft.policy.stub_over_tokens
    for index in draft.editable:
        message = draft.messages[index]
        content = None
        if is_list(message.content):
            content = edit_parts(message.content, partial(_without_media, _Lazy(draft, index)))
        elif draft.sizes[index] > least and message.is_result and _may_have_runs(message.content):
            content = edit_texts(message.content, partial(_without_runs, _Lazy(draft, index)))
        raw = None if content is None else with_fields(draft.current(index), {"content": content})
        if raw is not None:
            left = Left(draft.handle(index), (draft.content_as_sent(index),))
            yield Edit(stage=CompressionStage.IMAGES, index=index, raw=raw, why="old media", left=left)


def without_media(raw: Raw) -> Raw:
    """A message of any role without its media and base64, a line in the place of each; the same one where it has none.
    What a model reads once needs no handle."""
    message = read_message(raw)
    if is_list(message.content):
        content = edit_parts(message.content, lambda part: _without_media(_ANYWHERE, part) or _part_without_runs(part))
    elif _may_have_runs(message.content):
        content = edit_texts(message.content, partial(_without_runs, _ANYWHERE))
    else:
        return raw
    edited = None if content is None else with_fields(raw, {"content": content})
    return raw if edited is None else edited


class _Notes(Protocol):
    def about(self, what: str) -> str: ...


class _Anywhere:
    def about(self, what: str) -> str:
        return f"[{what} left out]"


_ANYWHERE = _Anywhere()


class _Lazy:
    """A note whose handle is computed only if it is needed."""

    def __init__(self, draft: Draft, index: int) -> None:
        self._draft = draft
        self._index = index

    def about(self, what: str) -> str:
        return Note(self._draft.handle(self._index)).about(what)


def _without_media(note: _Notes, part: msgspec.Raw) -> bytes | None:
    size = size_bytes(part)
    kind = _part_type(part)
    if kind not in _MEDIA:
        return None
    named = _MEDIA_TYPE.search(bytes(memoryview(part)[:400]))
    what = named[1].decode() if named else kind
    return msgspec.json.encode({"type": "text", "text": note.about(f"{what} of {size:,} bytes")})


def _part_without_runs(part: msgspec.Raw) -> bytes | None:
    value = decode(part)
    text = value.get("text") if isinstance(value, dict) else None
    edited = _without_runs(_ANYWHERE, text) if isinstance(text, str) else text
    return None if edited == text else with_fields(part, {"text": msgspec.json.encode(edited)})


class _Part(msgspec.Struct):
    type: str = ""


_PART = msgspec.json.Decoder(_Part)


def _part_type(part: msgspec.Raw) -> str:
    try:
        return _PART.decode(part).type
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _may_have_runs(content: msgspec.Raw) -> bool:
    raw = bytes(content)
    return b";base64," in raw or len(raw) > _CHARS_A_WORD * (raw.count(b" ") + raw.count(b"\\n") + 1)


def _without_runs(note: _Notes, text: str) -> str:
    edited = _RUN.sub(lambda run: _instead_of(run[0], note), text)
    is_json = edited != text and text.lstrip()[:1] in {"{", "["} and decode(text.encode()) is not None
    return text if is_json and decode(edited.encode()) is None else edited


def _instead_of(run: str, note: _Notes) -> str:
    """A run of digits alone may be a number."""
    return note.about(f"base64 of {len(run):,} characters") if _LETTER.search(run[:256]) else run

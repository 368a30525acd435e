"""The system prompt wherever a dialect keeps it, and whether two of them differ only in clocks, counters and ids. Pure.

A system prompt is the dialect's own field (``system``, ``instructions``), if there is one, and the messages of the
roles ``system`` and ``developer`` before all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from governor.tokens.breaks import first_difference
from governor.tokens.volatile import Change, shape_of, volatile_changes
from governor.wire.messages import decode
from governor.wire.request import GenerationRequest

SystemPrompt: TypeAlias = tuple[bytes, ...]
"""The field and the leading messages, each as its own bytes."""

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_SEPARATOR = "\n"


class _Item(msgspec.Struct):
    role: Any = None


_ITEM = msgspec.json.Decoder(_Item)


class Difference(msgspec.Struct, frozen=True):
    """Two system prompts that differ in nothing but volatile spans, or in how their JSON is written."""

    spans: int
    byte: int
    """Offset of the first difference in the newer text as UTF-8, its blocks joined by line breaks."""
    shapes: tuple[str, str]
    """The first span as it was and is, without what it says; both empty where no text differs."""

    def __str__(self) -> str:
        old, new = self.shapes
        more = f" and {self.spans - 1} more" if self.spans > 1 else ""
        return f"byte {self.byte} '{old}'" + ("" if old == new else f" -> '{new}'") + more


def leading_instructions(request: GenerationRequest) -> int:
    """How many messages open the request as instructions."""
    for index, raw in enumerate(request.messages):
        role = request.roles[index] or _role(raw)
        if role not in _INSTRUCTION_ROLES:
            return index
    return len(request.messages)


def difference(old: SystemPrompt, new: SystemPrompt) -> Difference | None:
    """``None``: something else is different, too. Linear."""
    if len(old) != len(new):
        return None
    olds: list[str] = []
    news: list[str] = []
    spans: list[Change] = []
    for one, other in zip(old, new, strict=True):
        (old_frame, old_texts), (new_frame, new_texts) = _apart(one), _apart(other)
        if len(old_texts) != len(new_texts) or not _equal(old_frame, new_frame):
            return None
        for before, now in zip(old_texts, new_texts, strict=True):
            if (changes := volatile_changes(before, now)) is None:
                return None
            spans += changes
        olds += old_texts
        news += new_texts
    if not spans:
        return Difference(0, 0, ("", ""))
    shapes = (shape_of(spans[0].old), shape_of(spans[0].new))
    return Difference(len(spans), first_difference(_joined(olds), _joined(news)), shapes)


def _role(raw: bytes) -> Any:
    try:
        return _ITEM.decode(raw).role
    except (msgspec.MsgspecError, RecursionError):
        return None


def _apart(raw: bytes) -> tuple[Any, list[str]]:
    """A text, a list of blocks or a message: what it is without its texts, and these. All of it is the frame where it
    cannot be read."""
    value = decode(raw)
    texts: list[str] = []
    if isinstance(value, dict):
        return value | {"content": _without_texts(value.get("content"), texts)}, texts
    return (raw if value is None else _without_texts(value, texts)), texts


def _without_texts(content: Any, texts: list[str]) -> Any:
    if isinstance(content, str):
        texts.append(content)
        return ""
    if not isinstance(content, list):
        return content
    frame = []
    for block in content:
        is_text = isinstance(block, dict) and isinstance(block.get("text"), str)
        if is_text:
            texts.append(block["text"])
        frame.append(block | {"text": ""} if is_text else block)
    return frame


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RecursionError:
        return False


def _joined(texts: Sequence[str]) -> bytes:
    return _SEPARATOR.join(texts).encode(errors="replace")

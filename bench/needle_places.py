"""Where needles are after a compression, whoever made it: still in the prompt, behind a handle, or nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from bench.needle_sessions import Session
from governor.compress.messages import read_message
from governor.compress.validate import new_rules_broken


class Place(StrEnum):
    PROMPT = "in the prompt"
    HANDLE = "by handle"
    """In what a handle leads to that the prompt names, or that such a content names in its turn."""
    LOST = "lost"


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a compression."""

    messages: Sequence[bytes]
    archive: Mapping[str, bytes]
    """All that left, by handle."""
    handles: str
    """Pattern of what may be a handle in a text."""
    cpu_ms: float
    times: int = 1
    """Compressions that led to it."""


def places(session: Session, made: Compressed) -> dict[str, Place]:
    """The place of each needle, by its value."""
    prompt = b"\n".join(made.messages)
    behind = reachable(prompt, made.archive, made.handles)
    return {needle.value: _place(needle.value.encode(), prompt, behind) for needle in session.needles}


def reachable(prompt: bytes, archive: Mapping[str, bytes], handles: str) -> bytes:
    """All that the handles in a prompt lead to."""
    pattern = re.compile(handles.encode())
    found: dict[str, bytes] = {}
    unread = [prompt]
    while unread:
        for match in pattern.finditer(unread.pop()):
            handle = match[0].decode()
            if handle in archive and handle not in found:
                found[handle] = archive[handle]
                unread.append(archive[handle])
    return b"\n".join(found.values())


def _place(value: bytes, prompt: bytes, behind: bytes) -> Place:
    if value in prompt:
        return Place.PROMPT
    return Place.HANDLE if value in behind else Place.LOST


def rules_broken(session: Session, made: Compressed) -> tuple[str, ...]:
    """Rules of the chat format that the client's history kept: known roles, calls with their results."""
    return new_rules_broken(map(read_message, session.messages), list(map(read_message, made.messages)))


def protected_changed(session: Session, made: Compressed) -> int:
    """How many of the instructions, the first and the last user message are not there as they were."""
    roles = [read_message(raw).role for raw in session.messages]
    users = [index for index, role in enumerate(roles) if role == "user"]
    indices = {index for index, role in enumerate(roles) if role == "system"} | {*users[:1], *users[-1:]}
    present = [_said(raw) for raw in made.messages]
    return sum(_said(session.messages[index]) not in present for index in indices)


def _said(raw: bytes) -> tuple[str, bytes]:
    fields = msgspec.json.decode(raw)
    return fields["role"], msgspec.json.encode(fields.get("content"))

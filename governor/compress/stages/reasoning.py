"""Old reasoning is left out.

Templates of thinking models do so themselves once the user has spoken again; within a long chain of tool calls they
keep all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from governor.compress.draft import Draft, Edit, Left
from governor.compress.messages import edit_texts, handle_of, is_empty, with_fields
from governor.policy.model import CompressionStage

_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
_REASONING = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OPEN, _CLOSE = "<think>", "</think>"


def reasoning_edits(draft: Draft) -> Iterator[Edit]:
    """Every old assistant message without its reasoning fields and without a thinking block before its text."""
    for index in draft.editable:
        message = draft.messages[index]
        if message.role != "assistant":
            continue
        raw = draft.current(index)
        changes: dict[str, bytes | None] = {}
        left: list[msgspec.Raw] = []
        if b'"reasoning' in bytes(raw):
            fields = _REASONING.decode(raw)
            left += [fields[name] for name in _FIELDS if name in fields and not is_empty(fields[name])]
            changes |= dict.fromkeys(name for name in _FIELDS if name in fields)
        if bytes(memoryview(message.content)[:40]).lstrip(b'"\\n[{').startswith((b"<think>", b'type":"text","text":"')):
            content = edit_texts(message.content, _without_thinking)
            if content is not None:
                changes["content"] = content
                left.append(message.content)
        if not left:
            continue
        if is_empty(message.content) and not message.has_calls:
            changes["content"] = b'""'
        edited = with_fields(raw, changes)
        if edited is not None:
            yield Edit(
                stage=CompressionStage.REASONING,
                index=index,
                raw=edited,
                why="old reasoning",
                left=Left(handle_of(*left), tuple(left)),
            )


def _without_thinking(text: str) -> str:
    inner = text.lstrip()
    end = inner.find(_CLOSE)
    return inner[end + len(_CLOSE) :].lstrip() if inner.startswith(_OPEN) and end >= 0 else text

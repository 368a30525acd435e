"""Old reasoning is left out.

Templates of thinking models do so themselves once the user has spoken again; within a long chain of tool calls they
keep all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from governor.compress.draft import Draft, Edit, Left
from governor.compress.messages import edit_texts, handle_of, is_empty, with_fields
from governor.policy.model import CompressionStage

_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
_OPENING_BYTES = 48
"""A thinking block opens the text or the text of the first part."""
_OPEN, _CLOSE = "<think>", "</think>"


def reasoning_edits(draft: Draft) -> Iterator[Edit]:
    """Every old assistant message without its reasoning fields and without a thinking block before its text."""
    for index in draft.editable:
        message = draft.messages[index]
        if message.role != "assistant":
            continue
        thoughts = (message.reasoning_content, message.reasoning, message.reasoning_details)
        left = [thought for thought in thoughts if not is_empty(thought)]
        changes: dict[str, bytes | None] = dict.fromkeys(_FIELDS) if left else {}
        if b"<think>" in bytes(memoryview(message.content)[:_OPENING_BYTES]):
            content = edit_texts(message.content, _without_thinking)
            if content is not None:
                changes["content"] = content
                left.append(message.content)
        if not left:
            continue
        if is_empty(message.content) and not message.has_calls:
            changes["content"] = b'""'
        edited = with_fields(draft.current(index), changes)
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

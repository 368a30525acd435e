"""The line that stands where a content was: what it was, how large, and the handle under which it is kept."""

from __future__ import annotations

from governor.compress.cuts import is_own, shortened
from governor.compress.draft import Draft, Edit, Left
from governor.compress.messages import size_bytes, text_of, with_fields, with_text
from governor.policy.model import CompressionStage

_CALL_CHARS = 160
_OWN_MOST_BYTES = 2000


def described(draft: Draft, index: int) -> str:
    """What the message is: the call that a result answers, or whose word it is."""
    message = draft.messages[index]
    call = draft.rounds.calls.get(index)
    if call is not None:
        return f"result of {shortened(f'{call.name} {call.arguments}', _CALL_CHARS)}"
    return "result of a tool" if message.is_result else f"{message.role} message"


def with_line(draft: Draft, index: int, stage: CompressionStage, what: str, why: str) -> Edit | None:
    """The message with a line in place of its content; ``None`` where that is a line of ours already."""
    content = draft.messages[index].content
    if size_bytes(content) <= _OWN_MOST_BYTES and is_own(text_of(content)):
        return None
    handle = draft.handle(index)
    raw = with_fields(draft.current(index), {"content": with_text(content, f"[{what}: {handle}]")})
    if raw is None:
        return None
    return Edit(stage=stage, index=index, raw=raw, why=why, left=Left(handle, (draft.content_as_sent(index),)))

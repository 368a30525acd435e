"""The message that stands for messages that were left out. It says so first, so that it is known again and nobody
takes it for the user's word."""

from __future__ import annotations

import re

import msgspec

from governor.compress.messages import Message

_REACH_BYTES = 120
_RECORD = re.compile(rb'"\[record, not a task: [\d,]+ earlier messages of this conversation left out: gov-[0-9a-f]{16}')


def record(role: str, gone: int, handle: str, summary: str = "") -> bytes:
    """Stands for ``gone`` messages, which are kept under ``handle``."""
    opening = f"[record, not a task: {gone:,} earlier messages of this conversation left out: {handle}"
    if not summary:
        return msgspec.json.encode({"role": role, "content": f"{opening}]"})
    text = (
        f"{opening}. What follows is a summary of them, as of then; the task is what the user says outside of it.]\n\n"
        f"{summary}\n\n[end of the record]"
    )
    return msgspec.json.encode({"role": role, "content": text})


def is_record(message: Message) -> bool:
    """The message is a record of ours, of this plan or an earlier one."""
    return _RECORD.match(bytes(memoryview(message.content)[:_REACH_BYTES])) is not None

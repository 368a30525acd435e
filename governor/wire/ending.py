"""How a stream is ended before its engine ends it: as one that has reached its cap. Pure.

Only chats and text completions: an end of the other dialects tells the tokens that were written, which nobody knows
then.
"""

from __future__ import annotations

from typing import Any

import msgspec

_COMMON = ("id", "object", "created", "model", "system_fingerprint")


def cut_off(data: bytes) -> bytes:
    """The data of the event that says so. ``data``: of the last event that shows something, of one choice."""
    last: dict[str, Any] = msgspec.json.decode(data)
    shown: dict[str, Any] = {"text": ""} if "text" in last["choices"][0] else {"delta": {}}
    choice = {"index": 0, **shown, "logprobs": None, "finish_reason": "length"}
    head = {name: last[name] for name in _COMMON if name in last}
    return msgspec.json.encode({**head, "choices": [choice]})

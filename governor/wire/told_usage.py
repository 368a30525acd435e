"""A lower ``usage.prompt_tokens`` for a client that compacts in vain, with the true figure beside it. Pure.

Chat completions only: Hermes and OpenClaw, which are steered by this figure, were recorded to read it there.
``total_tokens`` follows, ``cached_tokens`` does not exceed it; every other byte of the answer stays as it came.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from governor.errors import BadRequest
from governor.wire.jsonobject import JsonObject

OURS = "governor"
"""Field of ``usage`` with what the engine reported."""
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
"""In the text of an answer these quotes are escaped."""
_COUNT = msgspec.json.Decoder(int)


def told_usage(data: bytes, at_most: Callable[[int], int | None]) -> bytes:
    """An answer or a chunk in which ``prompt_tokens`` is no more than ``at_most`` of it (``None``: as it is); the very
    same bytes where it is already, or where there is no readable usage."""
    if not _USAGE.search(data):
        return data
    try:
        answer = JsonObject(data)
        usage = JsonObject(bytes(answer.raw("usage") or b"null"))
    except BadRequest:
        return data
    true = _count(usage, "prompt_tokens")
    most_tokens = None if true is None else at_most(true)
    if true is None or most_tokens is None or true <= most_tokens:
        return data
    changes: dict[str, bytes | None] = {"prompt_tokens": _json(most_tokens)}
    completion, total = _count(usage, "completion_tokens"), _count(usage, "total_tokens")
    if total is not None:
        changes["total_tokens"] = _json(most_tokens + (max(0, total - true) if completion is None else completion))
    details = _object(usage, "prompt_tokens_details")
    if details is not None and (_count(details, "cached_tokens") or 0) > most_tokens:
        changes["prompt_tokens_details"] = details.edited({"cached_tokens": _json(most_tokens)})
    changes[OURS] = _json({"prompt_tokens": true})
    return answer.edited({"usage": usage.edited(changes)})


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _count(fields: JsonObject, name: str) -> int | None:
    try:
        count = _COUNT.decode(fields.raw(name) or b"null")
    except msgspec.MsgspecError:
        return None
    return count if count >= 0 else None


def _object(fields: JsonObject, name: str) -> JsonObject | None:
    try:
        return JsonObject(bytes(fields.raw(name) or b"null"))
    except BadRequest:
        return None

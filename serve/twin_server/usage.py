"""Usage and ``sglext`` as SGLang reports them (``openai/usage_processor.py``, ``openai/protocol.py``). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serve.twin.engine_model import Cached
from serve.twin_server.generation import Generation


def usage_of(generations: Sequence[Generation], reasoning_tokens: int = 0, *, choices: int = 1) -> dict[str, Any]:
    """Of the ``choices`` generations of each prompt, one prompt after the other; a prompt counts once."""
    firsts = generations[::choices]
    prompt = sum(each.prompt_tokens for each in firsts)
    completion = sum(each.written_tokens for each in generations)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached.tokens for each in firsts)},
        "reasoning_tokens": reasoning_tokens,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens} if reasoning_tokens else None,
    }


WEIGHTS = "default"
"""``weight_version`` of an engine that was not told one."""


def weights(written_tokens: int) -> dict[str, Any]:
    """Which weights wrote an answer that is over."""
    return {"weight_versions": [{"version": WEIGHTS, "start": 0, "end": written_tokens}]}


def tier_split(cached: Cached, storage_backend: str | None) -> dict[str, Any] | None:
    """``cached_tokens_details``; L3 is named where there is one. ``None``, as SGLang has it, if nothing was cached."""
    if not cached.tokens:
        return None
    split: dict[str, Any] = {"device": cached.device, "host": cached.host}
    if storage_backend is not None:
        split |= {"storage": cached.storage, "storage_backend": storage_backend}
    return split

"""``/v1/completions`` and ``/generate`` as SGLang writes them. Pure.

Sources: ``openai/serving_completions.py``, ``managers/tokenizer_manager.py`` (``meta_info``), SGLang 0.5.23.
"""

from __future__ import annotations

from typing import Any

from serve.twin_server.generation import Generation
from serve.twin_server.usage import WEIGHTS, tier_split, weights


def completion_choice(
    index: int, text: str, finish: str | None, matched: int | str | None, more: dict[str, Any]
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": finish,
        "matched_stop": matched,
        **more,
    }


def completion(
    rid: str,
    created: int,
    model: str,
    choices: list[dict[str, Any]],
    usage: dict[str, Any] | None,
    more: dict[str, Any],
) -> dict[str, Any]:
    """A whole answer, or one chunk of a stream: they have the same form."""
    return {
        "id": rid,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": usage,
        **more,
    }


def generated(generation: Generation, text: str, index: int | None, storage_backend: str | None) -> dict[str, Any]:
    """An answer of ``/generate``, or what there is of it so far."""
    meta: dict[str, Any] = {
        "id": generation.rid,
        "finish_reason": generation.finish,
        "prompt_tokens": generation.prompt_tokens,
        "weight_version": WEIGHTS,
        "num_retractions": generation.retractions,
        "reasoning_tokens": 0,
        "completion_tokens": generation.written_tokens,
        "cached_tokens": generation.cached.tokens,
        "cached_tokens_details": tier_split(generation.cached, storage_backend),
        "dp_rank": None,
    }
    if not generation.was_admitted:
        del meta["prompt_tokens"]
    if generation.finish is not None:
        meta |= weights(generation.written_tokens)
    if generation.ended_at is not None:
        meta["e2e_latency"] = generation.ended_at - generation.began_at
    answer: dict[str, Any] = {"text": text, "output_ids": generation.output_ids, "meta_info": meta}
    return answer if index is None else answer | {"index": index}

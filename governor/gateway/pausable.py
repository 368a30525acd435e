"""Whether an answer is the same when it is generated in several pieces. Pure."""

from __future__ import annotations

import msgspec

from governor.wire.jsonobject import JsonObject
from governor.wire.request import GenerationRequest
from serve.engine import Endpoint, Engine

_WHOLE_ONLY = frozenset(
    {
        # The engine looks for these across all that it has written, or lets a grammar begin with the first token.
        "stop",
        "stop_regex",
        "regex",
        "ebnf",
        "structural_tag",
        "continue_final_message",
        # Figures of each token, or of the request as the engine saw it.
        "logprobs",
        "top_logprobs",
        "return_hidden_states",
        "return_routed_experts",
        "return_meta_info",
        "return_token_ids",
        "return_prompt_token_ids",
        "return_input_ids_in_sglext",
        "return_output_ids_in_sglext",
        "return_spec_tokens_details",
    }
)
_NOTHING: tuple[object, ...] = (None, False, 0, "", [])


def can_continue(engine: Engine, request: GenerationRequest) -> bool:
    """Whether it may be stopped and gone on with. False where the engine cannot, or the request asks for what only one
    generation gives."""
    if engine.continuation is None:
        return False
    return request.endpoint is Endpoint.CHAT and request.choices == 1 and not _needs_one_piece(request.json)


def _needs_one_piece(json: JsonObject) -> bool:
    if any(_value(json, name) not in _NOTHING for name in _WHOLE_ONLY):
        return True
    form, choice, options = (_value(json, name) for name in ("response_format", "tool_choice", "stream_options"))
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        return True
    if choice not in (None, "auto", "none"):
        return True
    return isinstance(options, dict) and bool(options.get("continuous_usage_stats"))


def _value(json: JsonObject, name: str) -> object:
    return msgspec.json.decode(json.raw(name) or b"null")

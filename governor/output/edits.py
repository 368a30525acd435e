"""Which fields of a request we change, and to what. All other bytes leave as they came."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from governor.output.caps import CapDecision
from governor.policy.model import DeveloperRole, RequestPolicy
from governor.wire.messages import decode, joined, with_one_system, without_reasoning
from governor.wire.request import GenerationRequest
from serve.engine import Capabilities, Endpoint, TurnFacts

_CAP_FIELDS: Mapping[Endpoint, tuple[str, ...]] = {
    Endpoint.COMPLETIONS: ("max_tokens",),
    Endpoint.RESPONSES: ("max_output_tokens",),
    Endpoint.MESSAGES: ("max_tokens",),
}
_TIER_SPLIT_ENDPOINTS = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
ALL_CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Edits(msgspec.Struct, frozen=True, kw_only=True):
    """The edited body and what was done to it."""

    body: bytes
    changed: tuple[str, ...] = ()
    """Fields set by us."""
    dropped: tuple[str, ...] = ()
    """Fields left out, because this engine fails on them, would take them for another cap, or would let the client
    decide over other agents' turns."""
    asks_tiers: bool = False
    """The answer will tell which tier served the cached tokens, and the client did not ask for it."""


def edit(
    request: GenerationRequest,
    cap: CapDecision,
    policy: RequestPolicy,
    capabilities: Capabilities,
    thinking_tokens: int | None = None,
    facts: TurnFacts | None = None,
) -> Edits:
    """Apply the cap, the policy and what the engine's adapter needs. An unedited request comes back as the very same
    bytes."""
    changes: dict[str, bytes | None] = {}
    changes |= _cap_changes(request, cap.tokens, capabilities)
    changes |= _usage_changes(request, capabilities)
    changes |= _message_changes(request, policy)
    changes |= _thinking_changes(request, thinking_tokens, capabilities)
    changes |= {name: msgspec.json.encode(value) for name, value in policy.sampling.items()}
    added = _additions(request, capabilities, facts)
    tiers = _tier_changes(request, capabilities)
    never_sent = capabilities.dropped_fields.union(capabilities.shadow_cap_fields)
    dropped = tuple(name for name in request.json.names() if name in never_sent and name not in added)
    body = request.json.edited(changes | tiers | dict.fromkeys(dropped) | added)
    changed = tuple(sorted({*changes, *tiers, *added} - set(dropped)))
    return Edits(body=body, changed=changed, dropped=dropped, asks_tiers=bool(tiers))


def counted_body(request: GenerationRequest, policy: RequestPolicy, capabilities: Capabilities) -> bytes:
    """The body for counting its prompt: what the engine is to render is as :func:`edit` will send it, for the other
    edits are not known yet, or change no prompt. Raises :class:`~governor.errors.BadRequest` where it does."""
    dropped = dict.fromkeys(name for name in request.json.names() if name in capabilities.dropped_fields)
    return request.json.edited(_message_changes(request, policy) | dropped)


def _cap_changes(request: GenerationRequest, cap: int, capabilities: Capabilities) -> dict[str, bytes | None]:
    """Exactly one spelling goes upstream, one that the engine obeys: the client's own where possible."""
    obeyed = _CAP_FIELDS.get(request.endpoint, capabilities.output_cap_fields)
    given = [name for name in obeyed if name in request.caps]
    kept = given[0] if given else obeyed[0]
    changes: dict[str, bytes | None] = {name: None for name in ALL_CAP_FIELDS if name != kept and name in request.json}
    if request.caps.get(kept) != cap:
        changes[kept] = str(cap).encode()
    return changes


def _usage_changes(request: GenerationRequest, capabilities: Capabilities) -> dict[str, bytes | None]:
    """Ask for usage, for our books; the relay takes the extra chunk out again."""
    if not request.stream or request.wants_usage or not capabilities.usage_on_request:
        return {}
    options = decode(request.json.raw("stream_options")) or {}
    return {"stream_options": msgspec.json.encode(options | {"include_usage": True})}


def _additions(request: GenerationRequest, capabilities: Capabilities, facts: TurnFacts | None) -> dict[str, bytes]:
    if facts is None:
        return {}
    wanted = capabilities.request_additions(request.endpoint, facts)
    return {name: msgspec.json.encode(value) for name, value in wanted.items()}


def _tier_changes(request: GenerationRequest, capabilities: Capabilities) -> dict[str, bytes]:
    """Ask which tier served the cached tokens, unless the client did; the relay takes it out again."""
    field = capabilities.tier_split_field
    if field is None or request.endpoint not in _TIER_SPLIT_ENDPOINTS or decode(request.json.raw(field)) is True:
        return {}
    return {field: b"true"}


def _message_changes(request: GenerationRequest, policy: RequestPolicy) -> dict[str, bytes | None]:
    if request.endpoint is not Endpoint.CHAT:
        return {}
    messages: list[bytes] | None = None
    roles = request.roles
    if policy.developer_role is DeveloperRole.SYSTEM and "developer" in roles:
        messages = with_one_system(request.messages, roles)
        roles = ("system", *(role for role in roles if role not in {"system", "developer"}))
    if policy.strip_reasoning:
        before = messages if messages is not None else [bytes(raw) for raw in request.messages]
        stripped = without_reasoning(before, roles)
        messages = stripped if stripped != before else messages
    return {} if messages is None else {"messages": joined(messages)}


def _thinking_changes(
    request: GenerationRequest, thinking_tokens: int | None, capabilities: Capabilities
) -> dict[str, bytes | None]:
    """Lower the thinking budget to the policy's; a client's smaller one stays."""
    if thinking_tokens is None:
        return {}
    if request.endpoint is Endpoint.MESSAGES:
        thinking = decode(request.json.raw("thinking"))
        if not isinstance(thinking, dict) or "budget_tokens" not in thinking:
            return {}
        if _within(thinking["budget_tokens"], thinking_tokens):
            return {}
        return {"thinking": msgspec.json.encode(thinking | {"budget_tokens": thinking_tokens})}
    field = capabilities.thinking_budget_field
    if field is None or request.endpoint is not Endpoint.CHAT:
        return {}
    asked = decode(request.json.raw(field))
    return {} if _within(asked, thinking_tokens) else {field: str(thinking_tokens).encode()}


def _within(asked: object, budget_tokens: int) -> bool:
    return type(asked) is int and 0 <= asked <= budget_tokens

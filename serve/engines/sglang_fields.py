"""SGLang's own request fields: names of requests, priorities, token ids. Pure; :mod:`serve.engines.sglang` sends them.

Source: SGLang 0.5.23 ``entrypoints/openai/protocol.py``, ``serving_chat.py``, ``managers/scheduler.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from governor.errors import BadRequest
from governor.types import AgentClass
from governor.wire.jsonobject import JsonObject, appended
from governor.wire.sse import SseEvent
from serve.engine import Endpoint, EngineCall, TokenIds, TurnFacts
from serve.profile.model import PriorityOrder

CLIENT_FIELDS_DROPPED = frozenset(
    {
        "rid",  # of another turn, it would abort that one
        "request_id",
        "priority",
        "input_ids",  # another prompt than the one that is counted and logged
        "session_id",
        "session_params",
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    }
)
RID_FIELD: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "rid",
    Endpoint.COMPLETIONS: "rid",
    Endpoint.RESPONSES: "request_id",
}
"""Where a dialect takes the name of a request; others have none."""
_RID_TURN_CHARS = 20
_RANK: Mapping[AgentClass, int] = {AgentClass.INTERACTIVE: 1, AgentClass.NORMAL: 0, AgentClass.BACKGROUND: -1}
"""Higher goes first. The engine takes a running request's place away only for one that is more than 10 ahead
(``--priority-scheduling-preemption-threshold``), and drops its state: these order the queue and never do that."""
IDS_NAME = b"sglext_ids"
"""In every event that carries ids."""
_IDS_EVENT = re.compile(rb"^event: ?sglext_ids\r?$", re.MULTILINE)
_CAPS = ("max_tokens", "max_completion_tokens")
_FLOOR = "min_tokens"


def rid_of(endpoint: Endpoint, turn_id: str, part: int = 0) -> str:
    """The engine's name of one generation. All have one length within an endpoint, and begin in another way in each,
    because the engine aborts every request whose name *begins* with the one it is given.

    Raises :class:`ValueError` for a turn id or part that has no room in it.
    """
    if not 0 < len(turn_id) <= _RID_TURN_CHARS or not 0 <= part <= 9999:
        raise ValueError(f"no request name for turn {turn_id!r}, part {part}")
    prefix = "resp_" if endpoint is Endpoint.RESPONSES else ""  # its own form is checked when it is asked for again
    return f"{prefix}{turn_id:-<{_RID_TURN_CHARS}}-{part:04}"


def additions(
    endpoint: Endpoint, facts: TurnFacts, order: PriorityOrder, keeps_sessions: bool
) -> dict[str, str | int | bool]:
    """Fields of our own in a request: its name, its class in the engine's direction, its conversation.

    The Messages dialect takes none of them.
    """
    field = RID_FIELD.get(endpoint)
    if field is None:
        return {}
    added: dict[str, str | int | bool] = {field: rid_of(endpoint, facts.turn_id)}
    if order is not PriorityOrder.OFF:
        added["priority"] = priority_of(facts.agent_class, order)
    if keeps_sessions and facts.session is not None:
        added["session_id"] = facts.session
    return added


def priority_of(agent_class: AgentClass, order: PriorityOrder) -> int:
    """A class as the engine's number."""
    rank = _RANK[agent_class]
    return -rank if order is PriorityOrder.LOWER_FIRST else rank


def asking_for_ids(call: EngineCall) -> EngineCall:
    """The same chat call, whose stream ends with an event of its token ids, even when it is aborted."""
    body = appended(call.body, {"return_input_ids_in_sglext": b"true", "return_output_ids_in_sglext": b"true"})
    return msgspec.structs.replace(call, body=body, headers={**call.headers, "x-sglext-ids-framed": "1"})


def asking_for_prompt(body: bytes) -> bytes:
    """A chat request as ``/tokenize`` takes it. The request's very fields decide over its template, so all are sent but
    for what makes it a stream."""
    return JsonObject(body).edited({"stream": None, "stream_options": None})


def ids_in(event: SseEvent) -> TokenIds | None:
    """The ids, if this is the event that carries them. It is no part of the client's answer."""
    if event.data is None or not _IDS_EVENT.search(event.raw):
        return None
    try:
        extensions = msgspec.json.decode(event.data, type=_IdsChunk).sglext
    except msgspec.MsgspecError:
        return None
    return TokenIds(extensions.input_ids, extensions.output_ids[0] if extensions.output_ids else ())


def again(call: EngineCall) -> EngineCall:
    """The same chat call under the name of the next part."""
    part = call.part + 1
    body = JsonObject(call.body).edited({"rid": msgspec.json.encode(rid_of(call.endpoint, call.turn_id, part))})
    return msgspec.structs.replace(call, body=body, part=part)


def continue_from(call: EngineCall, ids: TokenIds, *, thinking: bool = True) -> EngineCall:
    """The chat call that goes on exactly where ``ids`` end: the prompt is given as tokens, what was written counts
    towards the output cap, and the generation has a name of its own. The engine takes the request's word, not the
    tokens', for whether the output begins as reasoning: where the phase is over, ``thinking`` is false.

    Raises :class:`BadRequest` when the cap leaves nothing to write, or the call has another dialect.
    """
    if call.endpoint is not Endpoint.CHAT:
        raise BadRequest("Only a chat can be continued from token ids.")
    json = JsonObject(call.body)
    part = call.part + 1
    changes: dict[str, bytes | None] = {
        "input_ids": msgspec.json.encode([*ids.prompt, *ids.output]),
        "rid": msgspec.json.encode(rid_of(call.endpoint, call.turn_id, part)),
    }
    for field in _CAPS:
        cap = _decoded(json.raw(field))
        if type(cap) is int:
            left = cap - len(ids.output)
            if left < 1:
                raise BadRequest("The output cap is used up; there is nothing to continue.")
            changes[field] = str(left).encode()
    floor = _decoded(json.raw(_FLOOR))
    if type(floor) is int:
        changes[_FLOOR] = str(max(0, floor - len(ids.output))).encode()
    if not thinking:
        changes["separate_reasoning"] = b"false"
    return msgspec.structs.replace(call, body=json.edited(changes), part=part)


class _Ids(msgspec.Struct):
    input_ids: tuple[int, ...] = ()
    output_ids: tuple[tuple[int, ...], ...] = ()


class _IdsChunk(msgspec.Struct):
    sglext: _Ids


def _decoded(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)

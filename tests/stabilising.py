"""What the tests of a stable prefix share: requests of each dialect, and what must hold of every result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from governor.output.stable import Stabiliser, Stable
from governor.policy.model import Attribution, Interleaved, RequestPolicy, SystemBytes, ToolOrder
from governor.types import AgentName, SessionId
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint
from tests.scenario import CaseRequest

OFF = RequestPolicy(attribution=Attribution.KEEP)
ON = RequestPolicy(system_bytes=SystemBytes.PIN, tool_order=ToolOrder.BY_NAME, interleaved=Interleaved.REPAIR)
BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;"
"""As Claude Code sends it; the nonce at the end is another one on each request."""
PATHS = {"/v1/chat/completions": Endpoint.CHAT, "/v1/messages": Endpoint.MESSAGES}

Message = dict[str, Any]


def chat(*messages: Message, **fields: Any) -> GenerationRequest:
    return parse(Endpoint.CHAT, msgspec.json.encode({"model": "m", "messages": messages} | fields))


def anthropic(*messages: Message, **fields: Any) -> GenerationRequest:
    body = {"model": "m", "max_tokens": 9, "messages": messages} | fields
    return parse(Endpoint.MESSAGES, msgspec.json.encode(body))


def responses(*items: Message, **fields: Any) -> GenerationRequest:
    return parse(Endpoint.RESPONSES, msgspec.json.encode({"model": "m", "input": items} | fields))


def case_request(request: CaseRequest) -> GenerationRequest:
    return parse(PATHS[request.path], request.content())


def system(content: Any, role: str = "system") -> Message:
    return {"role": role, "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def said(content: str) -> Message:
    return {"role": "assistant", "content": content}


def asks(*ids: str) -> Message:
    calls = [{"id": each, "type": "function", "function": {"name": "read_file", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str | None, content: str = "found") -> Message:
    return {"role": "tool", "content": content} | ({} if call_id is None else {"tool_call_id": call_id})


def text(content: str, **fields: Any) -> Message:
    return {"type": "text", "text": content} | fields


def tool(name: str, **properties: Any) -> Message:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"{name}s", "parameters": parameters}}


class Sending:
    """One session under one policy."""

    def __init__(self, policy: RequestPolicy = ON, stabiliser: Stabiliser | None = None) -> None:
        self.policy = policy
        self.stabiliser = stabiliser or Stabiliser()

    def __call__(self, request: GenerationRequest, session: str = "s", agent: str = "alice") -> Stable:
        """The result, checked for what must hold of any."""
        made = self.stabiliser.stabilised(AgentName(agent), SessionId(session), request, self.policy)
        check(request, made)
        self.stabiliser.check_integrity()
        return made


def check(before: GenerationRequest, made: Stable) -> None:
    """The result is one consistent request, and the very same one where nothing is said to have changed."""
    after = made.request
    assert (after is before) == (not made.edits)
    again = parse(after.endpoint, after.json.body)
    assert parts(again) == parts(after)
    for name in msgspec.structs.fields(GenerationRequest):
        if name.name not in {"json", "messages", "roles", "system", "tools"}:
            assert getattr(again, name.name) == getattr(before, name.name) == getattr(after, name.name)
    ours = {"messages", "input", "system", "instructions", "tools"}
    assert [(name, bytes(before.json.raw(name) or b"")) for name in before.json.names() if name not in ours] == [
        (name, bytes(after.json.raw(name) or b"")) for name in after.json.names() if name not in ours
    ]


def parts(request: GenerationRequest) -> tuple[object, ...]:
    return (
        raws(request.messages),
        request.roles,
        request.system and bytes(request.system),
        request.tools and bytes(request.tools),
        request.json.body,
    )


def raws(messages: Sequence[bytes | msgspec.Raw]) -> list[bytes]:
    return [bytes(raw) for raw in messages]


def decoded(request: GenerationRequest) -> list[Any]:
    return [msgspec.json.decode(raw) for raw in request.messages]


def value(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)

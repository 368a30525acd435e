"""Edits of a request: which fields, to what, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.output.caps import CapDecision, CapReason
from governor.output.edits import Edits, edit
from governor.policy.model import DeveloperRole, RequestPolicy
from governor.wire.request import parse
from serve.engine import Capabilities, Endpoint
from tests.replay.recorded import RecordedRequest, recorded_requests

_USER = {"role": "user", "content": "hi"}
_BASE: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"model": "m", "messages": [_USER]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Endpoint.RESPONSES: {"model": "m", "input": "hi"},
    Endpoint.MESSAGES: {"model": "m", "messages": [_USER]},
}
_KEEP = RequestPolicy()


def _cap(tokens: int) -> CapDecision:
    return CapDecision(tokens=tokens, requested=None, reason=CapReason.POLICY, window_tokens=None)


def _edit(
    fields: dict[str, Any],
    endpoint: Endpoint = Endpoint.CHAT,
    cap: int = 9,
    policy: RequestPolicy = _KEEP,
    thinking: int | None = None,
    **capabilities: Any,
) -> tuple[dict[str, Any], Edits]:
    body = json.dumps(_BASE[endpoint] | fields).encode()
    edits = edit(parse(endpoint, body), _cap(cap), policy, Capabilities(**capabilities), thinking)
    return json.loads(edits.body), edits


def test_nothing_to_change_is_the_same_object_of_bytes() -> None:
    body = b'{"model":"m", "messages":[{"role":"user"}],\n "max_tokens":9 }'
    request = parse(Endpoint.CHAT, body)
    assert edit(request, _cap(9), _KEEP, Capabilities()) == Edits(body=body)


@pytest.mark.parametrize(
    ("given", "obeyed", "sent"),
    [
        ({}, ("max_tokens", "max_completion_tokens"), {"max_tokens": 9}),
        ({"max_tokens": 50}, ("max_tokens", "max_completion_tokens"), {"max_tokens": 9}),
        ({"max_completion_tokens": 50}, ("max_tokens", "max_completion_tokens"), {"max_completion_tokens": 9}),
        ({"max_completion_tokens": 50}, ("max_tokens",), {"max_tokens": 9}),
        ({"max_tokens": None}, ("max_completion_tokens",), {"max_completion_tokens": 9}),
        ({"max_tokens": 50, "max_completion_tokens": 50}, ("max_tokens", "max_completion_tokens"), {"max_tokens": 9}),
        ({"max_tokens": 9, "max_completion_tokens": None}, ("max_tokens",), {"max_tokens": 9}),
        ({"max_output_tokens": 50}, ("max_tokens",), {"max_tokens": 9}),
    ],
)
def test_one_spelling_of_the_cap_that_the_engine_obeys(
    given: dict[str, Any], obeyed: tuple[str, ...], sent: dict[str, int]
) -> None:
    body, _ = _edit(given, output_cap_fields=obeyed)
    assert {key: value for key, value in body.items() if "tokens" in key} == sent


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (Endpoint.COMPLETIONS, "max_tokens"),
        (Endpoint.MESSAGES, "max_tokens"),
        (Endpoint.RESPONSES, "max_output_tokens"),
    ],
)
def test_other_dialects_have_one_spelling(endpoint: Endpoint, field: str) -> None:
    body, edits = _edit({field: 50}, endpoint, output_cap_fields=("max_completion_tokens",))
    assert body == _BASE[endpoint] | {field: 9}
    assert edits.changed == (field,)


def test_usage_is_asked_for_beside_what_the_client_asked() -> None:
    body, _ = _edit({"stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert body["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert "stream_options" not in _edit({})[0]
    assert "stream_options" not in _edit({"stream": True}, usage_on_request=False)[0]
    assert _edit({"stream": True}, Endpoint.MESSAGES)[0].keys() == {"model", "messages", "stream", "max_tokens"}


def test_dropped_and_shadowing_fields_are_left_out_and_told() -> None:
    body, edits = _edit(
        {"store": True, "n_predict": 5, "seed": 1},
        dropped_fields=frozenset({"store"}),
        shadow_cap_fields=("n_predict",),
    )
    assert body == _BASE[Endpoint.CHAT] | {"seed": 1, "max_tokens": 9}
    assert (edits.dropped, edits.changed) == (("store", "n_predict"), ("max_tokens",))


def test_sampling_is_set_whatever_the_client_sends() -> None:
    policy = RequestPolicy(sampling={"temperature": 0.2, "top_k": 20})
    body, edits = _edit({"temperature": 1.0}, policy=policy)
    assert (body["temperature"], body["top_k"]) == (0.2, 20)
    assert edits.changed == ("max_tokens", "temperature", "top_k")


@pytest.mark.parametrize(
    ("client", "policy", "sent"),
    [(None, None, None), (None, 100, 100), (500, 100, 100), (50, 100, 50), (-1, 100, 100), (0, 100, 0)],
)
def test_thinking_budget_of_engines_that_take_one(client: int | None, policy: int | None, sent: int | None) -> None:
    given = {} if client is None else {"thinking_budget": client}
    body, _ = _edit(given, thinking=policy, thinking_budget_field="thinking_budget")
    assert body.get("thinking_budget") == sent
    assert "thinking_budget" not in _edit({}, thinking=policy)[0]


def test_thinking_budget_of_messages() -> None:
    thinking = {"type": "enabled", "budget_tokens": 5000}
    assert _edit({"thinking": thinking}, Endpoint.MESSAGES, thinking=100)[0]["thinking"] == {
        "type": "enabled",
        "budget_tokens": 100,
    }
    assert _edit({"thinking": thinking}, Endpoint.MESSAGES, thinking=9000)[0]["thinking"] == thinking
    assert "thinking" not in _edit({}, Endpoint.MESSAGES, thinking=100)[0]
    for odd in ("many", None, 1.5):
        body, _ = _edit({"thinking": {"type": "enabled", "budget_tokens": odd}}, Endpoint.MESSAGES, thinking=100)
        assert body["thinking"] == {"type": "enabled", "budget_tokens": 100}


def test_developer_and_reasoning_together() -> None:
    policy = RequestPolicy(developer_role=DeveloperRole.SYSTEM, strip_reasoning=True)
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "assistant", "content": "x", "reasoning": "r"},
        {"role": "system", "content": None},
        _USER,
    ]
    body, _ = _edit({"messages": messages}, policy=policy)
    assert body["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": "x"},
        _USER,
    ]


@pytest.mark.parametrize("recorded", recorded_requests(), ids=lambda recorded: recorded.name)
def test_recorded_requests_differ_in_the_fields_we_own_only(recorded: RecordedRequest) -> None:
    request = parse(recorded.endpoint, recorded.body)
    edits = edit(request, _cap(77), _KEEP, Capabilities())
    before, after = json.loads(recorded.body), json.loads(edits.body)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == set(edits.changed)
    assert changed <= {"max_tokens", "max_completion_tokens", "max_output_tokens", "stream_options"}
    assert edits.dropped == ()

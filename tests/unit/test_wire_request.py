"""Reading requests: the fields we govern, in each dialect, and a 400 that names the field for what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.errors import BadRequest
from governor.wire.request import MAX_MODEL_CHARS, GenerationRequest, parse
from serve.engine import Endpoint

_USER = {"role": "user", "content": "hi"}
_BASE: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"model": "m", "messages": [_USER]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Endpoint.RESPONSES: {"model": "m", "input": "hi"},
    Endpoint.MESSAGES: {"model": "m", "messages": [_USER], "max_tokens": 9},
    Endpoint.COUNT_TOKENS: {"model": "m", "messages": [_USER]},
}
_TOOL = {"type": "function", "function": {"name": "f"}}


def _read(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> GenerationRequest:
    return parse(endpoint, json.dumps(_BASE[endpoint] | fields).encode())


@pytest.mark.parametrize("endpoint", Endpoint)
def test_least_request(endpoint: Endpoint) -> None:
    request = _read(endpoint)
    assert (request.model, request.stream, request.choices, request.tools) == ("m", False, 1, None)
    assert len(request.messages) == len(request.roles) == 1
    assert request.requested_cap == (9 if endpoint is Endpoint.MESSAGES else None)


def test_chat() -> None:
    request = _read(
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=9,
        max_completion_tokens=5,
        n=2,
        tools=[_TOOL],
        prompt_cache_key="k",
    )
    assert (request.stream, request.wants_usage, request.choices, request.cache_key) == (True, True, 2, "k")
    assert request.requested_cap == 5
    assert request.tools_usable
    assert request.roles == ("user",)


def test_odd_but_legal() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "x"}]},
        _USER,
        _USER,
        {"role": "assistant", "content": "", "reasoning_content": "r"},
        {"role": "tool", "content": "x", "tool_call_id": "t", "name": "f"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{broken"}}]},
    ]
    request = _read(messages=messages, unknown={"any": ["thing"]}, max_tokens=None, stream=None, tools=None, n=None)
    assert [json.loads(bytes(raw)) for raw in request.messages] == messages
    assert request.requested_cap is None


@pytest.mark.parametrize(
    ("tools", "choice", "usable"),
    [
        ([], None, False),
        ([_TOOL], None, True),
        ([_TOOL], "auto", True),
        ([_TOOL], "none", False),
        ([_TOOL], {"type": "none"}, False),
        ([_TOOL], {"type": "function"}, True),
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_tools_usable(tools: list[Any], choice: Any, usable: bool, endpoint: Endpoint) -> None:
    assert _read(endpoint, tools=tools, tool_choice=choice).tools_usable is usable


def test_responses() -> None:
    items = [{"role": "user", "content": "a"}, {"type": "function_call_output", "output": "b"}]
    request = _read(Endpoint.RESPONSES, input=items, instructions="be brief", max_output_tokens=7)
    assert [json.loads(bytes(raw)) for raw in request.messages] == items
    assert bytes(request.system or b"") == b'"be brief"'
    assert request.caps == {"max_output_tokens": 7}
    assert request.wants_usage


def test_messages() -> None:
    request = _read(Endpoint.MESSAGES, system=[{"type": "text", "text": "x"}], tools=[{"name": "f"}])
    assert bytes(request.system or b"").startswith(b"[{")
    assert request.tools_usable


_BAD: list[tuple[Endpoint, dict[str, Any], str]] = [
    (Endpoint.CHAT, {"model": 7}, "model"),
    (Endpoint.CHAT, {"model": None}, "model"),
    (Endpoint.CHAT, {"model": ""}, "model"),
    (Endpoint.CHAT, {"model": "x" * (MAX_MODEL_CHARS + 1)}, "model"),
    (Endpoint.CHAT, {"messages": None}, "messages"),
    (Endpoint.CHAT, {"messages": []}, "messages"),
    (Endpoint.CHAT, {"messages": "hi"}, "messages"),
    (Endpoint.CHAT, {"messages": ["hi"]}, "messages"),
    (Endpoint.CHAT, {"messages": [_USER, {"content": "x"}]}, "messages[1].role"),
    (Endpoint.CHAT, {"messages": [{"role": 7}]}, "messages[0].role"),
    (Endpoint.CHAT, {"messages": [{"role": "banana"}]}, "messages[0].role"),
    (Endpoint.CHAT, {"messages": [{"role": "\x1b[31m"}]}, "messages[0].role"),
    (Endpoint.CHAT, {"stream": "yes"}, "stream"),
    (Endpoint.CHAT, {"stream": 1}, "stream"),
    (Endpoint.CHAT, {"stream_options": True}, "stream_options"),
    (Endpoint.CHAT, {"max_tokens": "5"}, "max_tokens"),
    (Endpoint.CHAT, {"max_tokens": 0}, "max_tokens"),
    (Endpoint.CHAT, {"max_tokens": True}, "max_tokens"),
    (Endpoint.CHAT, {"max_completion_tokens": 1.0}, "max_completion_tokens"),
    (Endpoint.CHAT, {"n": 0}, "n"),
    (Endpoint.CHAT, {"n": 129}, "n"),
    (Endpoint.CHAT, {"tools": {}}, "tools"),
    (Endpoint.CHAT, {"prompt_cache_key": 7}, "prompt_cache_key"),
    (Endpoint.COMPLETIONS, {"prompt": None}, "prompt"),
    (Endpoint.RESPONSES, {"input": None}, "input"),
    (Endpoint.RESPONSES, {"input": []}, "input"),
    (Endpoint.RESPONSES, {"max_output_tokens": -1}, "max_output_tokens"),
    (Endpoint.MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
]


@pytest.mark.parametrize(("endpoint", "fields", "param"), _BAD)
def test_refused_by_name(endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        _read(endpoint, **fields)
    assert caught.value.param == param
    assert param.partition("[")[0] in caught.value.message
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("field", ["messages", "tools", "max_tokens", "prompt_cache_key", "stream_options"])
def test_deep_nesting_is_a_400(field: str) -> None:
    fields = {"model": b'"m"', "messages": b'[{"role":"user"}]', field: b"[" * 200_000 + b"]" * 200_000}
    body = b",".join(b'"' + name.encode() + b'":' + value for name, value in fields.items())
    with pytest.raises(BadRequest):
        parse(Endpoint.CHAT, b"{" + body + b"}")

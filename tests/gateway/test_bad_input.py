"""Bad input: a clear 4xx in the dialect's own shape that names the field, nothing forwarded, nothing left behind.

Every request here has a valid key; a body that arrived whole is a turn and has one row, ``refused``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from governor.gateway.body import BodyLimits
from governor.runtime import RuntimeConfig
from governor.types import TurnState
from serve.engine import Endpoint
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import Governed, governed

CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT = Endpoint
CAP_BYTES = 2_000_000
HI = [{"role": "user", "content": "hi"}]
GOOD: dict[Endpoint, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": HI},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    RESPONSES: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "messages": HI, "max_tokens": 64},
    COUNT: {"model": "m", "messages": HI},
}
ANTHROPIC = {MESSAGES, COUNT}
SECRET = "words-of-a-person"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine:
        yield engine


@pytest.fixture
async def gov(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    config = RuntimeConfig(body_limits=BodyLimits(max_bytes=CAP_BYTES))
    async with governed(engine.url, tmp_path, config=config) as gov:
        yield gov


async def post(gov: Governed, endpoint: Endpoint, body: bytes, **headers: str) -> httpx.Response:
    async with gov.client() as client:
        return await client.post(endpoint, content=body, headers={"content-type": "application/json"} | headers)


def message_of(endpoint: Endpoint, answer: httpx.Response) -> str:
    """The error's message, after a look at its shape."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    error = body["error"]
    if endpoint in ANTHROPIC:
        assert body["type"] == "error"
        assert error["type"] in {"invalid_request_error", "not_found_error", "request_too_large"}
    else:
        assert error["type"] == "invalid_request_error"
        assert error["source"] == "governor"
    assert isinstance(error["message"], str)
    assert error["message"].isprintable()
    assert len(error["message"]) < 1000
    return str(error["message"])


async def assert_nothing_left(gov: Governed, engine: ScriptedEngine, turns: int) -> None:
    await gov.assert_idle()
    assert not engine.hits
    assert [row.state for row in await gov.rows()] == [TurnState.REFUSED] * turns


WRONG: list[Any] = [7, -1, 1.5, True, "x", [], ["x"], {}, {"a": 1}]


def wrong(*right: type) -> list[Any]:
    """Values of every other type."""
    return [value for value in WRONG if type(value) not in right]


NOT_A_CAP = [0, -1, 1.5, 1e5, True, "64", [], {}]
FIELDS: list[tuple[Endpoint, str, list[Any]]] = [
    *((endpoint, "model", [*wrong(str), None, ""]) for endpoint in Endpoint),
    *((endpoint, "stream", wrong(bool)) for endpoint in Endpoint),
    *((endpoint, "messages", [*wrong(list), None, [], ["x"], [[]], [7], [None]]) for endpoint in (CHAT, *ANTHROPIC)),
    *((endpoint, "tools", wrong(list)) for endpoint in (CHAT, RESPONSES, *ANTHROPIC)),
    *((endpoint, "max_tokens", NOT_A_CAP) for endpoint in (CHAT, COMPLETIONS, *ANTHROPIC)),
    *((endpoint, "n", [*NOT_A_CAP, 129]) for endpoint in (CHAT, COMPLETIONS)),
    *((endpoint, "stream_options", wrong(dict)) for endpoint in (CHAT, COMPLETIONS)),
    *((endpoint, "prompt_cache_key", wrong(str)) for endpoint in (CHAT, RESPONSES)),
    (CHAT, "max_completion_tokens", NOT_A_CAP),
    (RESPONSES, "max_output_tokens", NOT_A_CAP),
    (COMPLETIONS, "prompt", [*wrong(str, list), None]),
    (RESPONSES, "input", [*wrong(str, list), None]),
    (RESPONSES, "instructions", wrong(str, list)),
    (MESSAGES, "system", wrong(str, list)),
]


@pytest.mark.parametrize("endpoint", Endpoint)
async def test_wrong_types_of_governed_fields(gov: Governed, engine: ScriptedEngine, endpoint: Endpoint) -> None:
    wrong_ones = [(field, value) for route, field, values in FIELDS if route is endpoint for value in values]
    for field, value in wrong_ones:
        answer = await post(gov, endpoint, msgspec.json.encode({**GOOD[endpoint], field: value, "user": SECRET}))
        assert answer.status_code == 400, (field, value, answer.text)
        assert f"'{field}" in message_of(endpoint, answer), (field, value)
        if endpoint not in ANTHROPIC:
            assert answer.json()["error"]["param"].partition("[")[0] == field, (field, value)
        assert SECRET not in answer.text
    await assert_nothing_left(gov, engine, len(wrong_ones))


@pytest.mark.parametrize("endpoint", Endpoint)
async def test_missing_fields(gov: Governed, engine: ScriptedEngine, endpoint: Endpoint) -> None:
    needed = [field for field in GOOD[endpoint] if field != "max_tokens"]
    for field in needed:
        body = {key: value for key, value in GOOD[endpoint].items() if key != field}
        answer = await post(gov, endpoint, msgspec.json.encode(body))
        assert answer.status_code == 400
        assert f"'{field}'" in message_of(endpoint, answer)
    await assert_nothing_left(gov, engine, len(needed))


ROLES = [None, 7, "", "root", "User", {"a": 1}, "\x1b[31m", "x" * 5000]


@pytest.mark.parametrize("endpoint", [CHAT, MESSAGES])
async def test_roles(gov: Governed, engine: ScriptedEngine, endpoint: Endpoint) -> None:
    for role in ROLES:
        body = {**GOOD[endpoint], "messages": [*HI, {"role": role, "content": "x"}]}
        answer = await post(gov, endpoint, msgspec.json.encode(body))
        assert answer.status_code == 400, role
        assert "messages[1].role" in message_of(endpoint, answer)
    await assert_nothing_left(gov, engine, len(ROLES))


DEEP = 100_000
NOT_JSON: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "word": b"hello",
    "cut": b'{"model":"m","messages":[{"role":"us',
    "open string": b'{"model":"m',
    "trailing comma": b'{"model":"m",}',
    "trailing junk": b'{"model":"m"} x',
    "two objects": b'{"model":"m"}{"model":"m"}',
    "single quotes": b"{'model':'m'}",
    "comment": b'{"model":"m" /* x */}',
    "NaN": b'{"model":"m","temperature":NaN}',
    "unquoted key": b'{model:"m"}',
    "control character in a key": b'{"mo\x01del":"m"}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "invalid utf-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "surrogate as utf-8": b'{"model":"m\xed\xa0\x80"}',
    "overlong utf-8": b'{"model":"\xc0\xaf"}',
    "lone surrogate in the model": b'{"model":"\\ud800","messages":[{"role":"user","content":"x"}]}',
    "bad escape": b'{"model":"\\x41","messages":[{"role":"user","content":"x"}]}',
    "bad escape in a role": b'{"model":"m","messages":[{"role":"\\q","content":"x"}],"prompt":7,"input":7}',
    "list": b"[]",
    "number": b"7",
    "string": b'"x"',
    "null": b"null",
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested lists, open": b"[" * DEEP,
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "nested in a field": b'{"model":"m","x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nested in messages": b'{"model":"m","messages":' + b"[" * DEEP + b"]" * DEEP + b',"prompt":7,"input":7}',
    "key twice": b'{"model":"m","model":"n"}',
    "key twice, escaped": b'{"model":"m","mod\\u0065l":"n"}',
    "key twice, other": b'{"model":"m","max_tokens":1,"x":{},"max_tokens":100000}',
    "key twice, equal": b'{"model":"m","stream":true,"stream":true}',
}


@pytest.mark.parametrize("endpoint", Endpoint)
async def test_what_is_not_a_request(gov: Governed, engine: ScriptedEngine, endpoint: Endpoint) -> None:
    for name, body in NOT_JSON.items():
        answer = await post(gov, endpoint, body)
        assert answer.status_code == 400, (name, answer.text)
        message = message_of(endpoint, answer)
        if name.startswith("key twice"):
            assert "more than once" in message or "repeats" in message, name
    await assert_nothing_left(gov, engine, len(NOT_JSON))


async def test_huge_bodies(gov: Governed, engine: ScriptedEngine) -> None:
    """No turn, since the body was not taken in whole."""
    for endpoint in Endpoint:
        answer = await post(gov, endpoint, msgspec.json.encode({**GOOD[endpoint], "user": "x" * CAP_BYTES}))
        assert answer.status_code == 413
        assert str(CAP_BYTES) in message_of(endpoint, answer)
    await assert_nothing_left(gov, engine, 0)


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("content-type", ["text/plain", "application/jsonp", "application/json/x", ""]),
        ("content-encoding", ["zstd", "gzip, gzip"]),
    ],
)
async def test_wrong_headers(gov: Governed, engine: ScriptedEngine, header: str, values: list[str]) -> None:
    for endpoint in Endpoint:
        for value in values:
            answer = await post(gov, endpoint, msgspec.json.encode(GOOD[endpoint]), **{header: value})
            assert answer.status_code == 415, (endpoint, value)
            assert header in message_of(endpoint, answer)
    await assert_nothing_left(gov, engine, 0)


async def test_content_types_that_are_json(gov: Governed, engine: ScriptedEngine) -> None:
    values = ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"]
    for value in values:
        answer = await post(gov, CHAT, msgspec.json.encode(GOOD[CHAT]), **{"content-type": value})
        assert answer.status_code == 200
    assert len(engine.hits) == len(values)


MODELS = ["M", "m ", "../m", "m\x00", "m\n", "\x1b[2J", "x" * 512, "модель", "gpt-4o"]


@pytest.mark.parametrize("endpoint", Endpoint)
async def test_models_that_are_not_served(gov: Governed, engine: ScriptedEngine, endpoint: Endpoint) -> None:
    for model in MODELS:
        answer = await post(gov, endpoint, msgspec.json.encode({**GOOD[endpoint], "model": model}))
        assert answer.status_code == 404, model
        assert "not served here" in message_of(endpoint, answer)
    await assert_nothing_left(gov, engine, len(MODELS))


async def test_wrong_methods(gov: Governed, engine: ScriptedEngine) -> None:
    async with gov.client() as client:
        for endpoint in Endpoint:
            for method in ("GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
                answer = await client.request(method, endpoint)
                assert answer.status_code == 405
                assert answer.headers["allow"] == "POST"
                if method != "HEAD":
                    message_of(endpoint, answer)
    await assert_nothing_left(gov, engine, 0)


PATHS = [
    "/", "/v1", "/v1/", "/v1/chat/completions/", "/v1//chat/completions", "/V1/chat/completions", "/v1/embeddings",
    "/v1/files", "/api/tags", "/api/show", "/props", "/v1/props", "/version", "/tokenize", "/slots", "/favicon.ico",
]  # fmt: skip


async def test_paths_that_are_not_offered(gov: Governed, engine: ScriptedEngine) -> None:
    async with gov.client() as client:
        for path in PATHS:
            for method in ("GET", "POST"):
                answer = await client.request(method, path, json=GOOD[CHAT] if method == "POST" else None)
                assert answer.status_code == 404, path
                assert answer.json()["error"]["code"] == "not_found"
    await assert_nothing_left(gov, engine, 0)

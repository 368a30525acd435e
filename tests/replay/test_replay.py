"""Recorded requests replayed through a real governor arrive at the engine byte for byte, owned fields apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import httpx
import msgspec
import pytest

from governor.policy.model import OutputPolicy
from governor.types import TurnState
from serve.engine import Endpoint
from serve.scripted import Hit, Knobs, ScriptedEngine
from tests.harness import Governed, governed
from tests.replay.recorded import RecordedRequest, recorded_requests

FILES = {name: tuple(group) for name, group in groupby(recorded_requests(), lambda request: request.file)}
CAP_FIELDS = {
    Endpoint.CHAT: ("max_tokens", "max_completion_tokens"),
    Endpoint.RESPONSES: ("max_output_tokens",),
    Endpoint.MESSAGES: ("max_tokens",),
}
FORWARDED_HEADERS = {
    *("host", "accept", "accept-encoding", "connection", "content-length", "content-type", "user-agent"),
    *("anthropic-version", "anthropic-beta", "openai-beta", "traceparent"),
}


def fields_of(body: bytes) -> dict[str, bytes]:
    """The undecoded values of a body's top-level fields, in their order."""
    return {name: bytes(raw) for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


def compact(fields: dict[str, bytes]) -> bytes:
    """A body of these fields without any white space between them, as both clients write it."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + value for name, value in fields.items()) + b"}"


def expected_fields(request: RecordedRequest) -> dict[str, bytes]:
    """What may reach the engine: the same, but for a cap that is missing or larger than the default policy's."""
    fields = fields_of(request.body)
    given = [name for name in CAP_FIELDS[request.endpoint] if name in fields]
    limit = OutputPolicy().cap_for(request.kind)
    name = given[0] if given else CAP_FIELDS[request.endpoint][0]
    if not given or int(fields[name]) > limit:
        fields[name] = str(limit).encode()
    return fields


@asynccontextmanager
async def replaying(root: Path) -> AsyncIterator[tuple[ScriptedEngine, Governed]]:
    """An engine whose window none of the recordings comes near, and a governor in front of it."""
    knobs = Knobs(model="qwen3-stub", window_tokens=1_000_000)
    async with ScriptedEngine("record", knobs=knobs) as engine, governed(engine.url, root) as governor:
        yield engine, governor


async def replay(request: RecordedRequest, governor: Governed) -> httpx.Response:
    async with httpx.AsyncClient(base_url=governor.url, trust_env=False) as client:
        return await client.request(
            request.method,
            request.endpoint.value,
            content=request.body,
            headers=request.with_key(governor.keys["alice"]),
        )


def test_recordings_are_compact() -> None:
    """What :func:`compact` builds is comparable to them."""
    for requests in FILES.values():
        for request in requests:
            assert compact(fields_of(request.body)) == request.body


@pytest.mark.parametrize("name", FILES)
async def test_requests_arrive_as_sent(name: str, tmp_path: Path) -> None:
    requests = FILES[name]
    async with replaying(tmp_path) as (engine, governor):
        answers = [await replay(request, governor) for request in requests]
        assert [answer.status_code for answer in answers] == [200] * len(requests)

        turns = await governor.ends()
        assert [turn.state for turn in turns] == [TurnState.OK] * len(requests)
        assert [turn.kind for turn in turns] == [request.kind for request in requests]
        for request, hit, answer, turn in zip(requests, engine.hits, answers, turns, strict=True):
            before, expected = fields_of(request.body), expected_fields(request)
            after = fields_of(hit.body)
            assert {field for field in after if after[field] != expected.get(field)} == set()
            assert hit.body == compact(expected)
            assert set(turn.edits) == {field for field in expected if before.get(field) != expected[field]}
            assert (hit.method, hit.path) == (request.method, request.endpoint.value)
            assert answer.content == bytes(hit.body_sent)
            assert_nothing_else_of_the_client(hit)


def assert_nothing_else_of_the_client(hit: Hit) -> None:
    """Only named headers are passed on; the key is not among them."""
    assert set(hit.headers) <= FORWARDED_HEADERS
    assert not hit.headers.get("user-agent", "").startswith("OpenAI/")


async def test_sessions_of_recorded_chats_are_followed(tmp_path: Path) -> None:
    """Two turns of Hermes, the second in a new process that leaves out the tools' names, then OpenClaw with its moving
    last message."""
    chats = FILES["hermes-chat"], FILES["openclaw-chat"][2:]
    async with replaying(tmp_path) as (_, governor):
        for chat in chats:
            for request in chat:
                await replay(request, governor)
        turns = await governor.ends()
        hermes, openclaw = turns[:4], turns[4:]
        for session in hermes, openclaw:
            assert len({turn.session for turn in session}) == 1
        assert hermes[0].session != openclaw[0].session
        assert [turn.shape for turn in hermes] == ["fresh", "continuation", "branch", "continuation"]
        assert hermes[2].broke_at is not None
        assert hermes[2].broke_at.endswith("tool_name_dropped")
        assert [turn.shape for turn in openclaw] == ["fresh", "continuation", "continuation"]

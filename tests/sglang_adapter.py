"""What must hold of the adapter and the gateway on an SGLang: names, counts, tiers, aborts, going on from token ids.

``tests/sglang`` asks it of the real one, ``tests/contract`` of the twin's server. A test file imports everything here
and has a fixture ``served``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from governor.types import AgentClass, TurnState
from governor.wire.answer import ChatReader
from governor.wire.sse import SseSplitter
from serve.engine import Endpoint, EngineCall, TokenIds, TurnFacts
from serve.engines.sglang import Sglang
from serve.engines.sglang_fields import asking_for_ids, continue_from, ids_in
from tests.harness import Governed, governed

MODEL = "tiny-hybrid"
PAGE = 64
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


def words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))  # noqa: S311 - not a secret


def chat_body(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


class Served(msgspec.Struct, frozen=True):
    """A server that is there, with four places to decode in and pages of 64."""

    url: str
    window_tokens: int
    pool_tokens: int
    """Of the GPU; the host's has room for twice as much."""


@pytest.fixture
async def engine(served: Served) -> AsyncIterator[Sglang]:
    adapter = Sglang(served.url)
    await adapter.describe()
    yield adapter
    await adapter.aclose()


@pytest.fixture
async def gateway(served: Served, tmp_path: Path) -> AsyncIterator[Governed]:
    async with governed(served.url, tmp_path, engine_kind="sglang", agents=("alice", "bob")) as governor:
        yield governor


async def test_it_describes_itself_and_its_load(engine: Sglang, served: Served) -> None:
    info = await engine.describe()
    (card,) = info.models
    assert (card.id, card.window_tokens) == (MODEL, served.window_tokens)
    assert (info.version, info.slots) == ("0.5.23", 4)
    assert await engine.is_ready()
    assert engine.capabilities.priorities  # the profile's switch is on
    load = await engine.load()
    assert load.kv_capacity_tokens == served.pool_tokens
    assert load.running == 0


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
async def test_a_chat_is_counted_as_it_is_charged(with_tools: bool, engine: Sglang) -> None:
    fields: dict[str, Any] = {"tools": TOOLS} if with_tools else {}
    body = chat_body("How long is this, with its é?", max_tokens=1, stream=True, **fields)
    count = await engine.count_prompt(Endpoint.CHAT, msgspec.json.encode(body))
    answer = await ask(engine, Endpoint.CHAT, body | {"stream": False})
    assert count is not None
    assert (count.tokens, count.exact) == (answer["usage"]["prompt_tokens"], True)
    assert len(await engine.continuation.prompt_ids(msgspec.json.encode(body))) == count.tokens


async def test_texts_and_messages_are_counted_as_they_are_charged(engine: Sglang) -> None:
    text = {"model": MODEL, "prompt": words(1, 50), "max_tokens": 1}
    count = await engine.count_prompt(Endpoint.COMPLETIONS, msgspec.json.encode(text))
    answer = await ask(engine, Endpoint.COMPLETIONS, text)
    assert count is not None
    assert count.tokens == answer["usage"]["prompt_tokens"]
    message = {"model": MODEL, "messages": [{"role": "user", "content": words(2, 20)}], "max_tokens": 1}
    count = await engine.count_prompt(Endpoint.MESSAGES, msgspec.json.encode(message))
    answer = await ask(engine, Endpoint.MESSAGES, message)
    assert count is not None
    assert count.tokens == answer["usage"]["input_tokens"] + answer["usage"].get("cache_read_input_tokens", 0)
    assert await engine.count_prompt(Endpoint.RESPONSES, b'{"model":"m","input":"hi"}') is None


async def test_the_gateways_chat_hides_what_it_asked_for(gateway: Governed) -> None:
    content = words(3, 300)
    for _ in range(2):
        answer = (await gateway.chat(**chat_body(content, max_tokens=8))).raise_for_status().json()
        assert "sglext" not in answer
        assert answer["usage"]["completion_tokens"] == 8
    first, second = await gateway.ends()
    assert {"rid", "priority", "return_cached_tokens_details"} <= set(first.edits)
    assert (first.state, second.state) == (TurnState.TRUNCATED, TurnState.TRUNCATED)
    assert first.usage.cached_tokens == 0
    usage = second.usage
    assert usage.cached_tokens is not None
    assert usage.cached_tokens > 0
    assert (usage.cached_device_tokens, usage.cached_host_tokens) == (usage.cached_tokens, 0)


async def test_the_gateways_stream_hides_it_too_unless_the_client_asked(gateway: Governed) -> None:
    body = chat_body(words(4, 300), max_tokens=8, stream=True)
    assert await streamed(gateway, body)
    events = await streamed(gateway, body)
    assert not [event for event in events if "sglext" in event or not event["choices"]]
    asked = await streamed(gateway, body | {"return_cached_tokens_details": True})
    (tiers,) = [event["sglext"]["cached_tokens_details"] for event in asked if "sglext" in event]
    ends = await gateway.ends()
    assert [end.state for end in ends] == [TurnState.TRUNCATED] * 3
    assert ends[1].usage.cached_device_tokens == ends[2].usage.cached_device_tokens == tiers["device"] > 0
    assert all("return_cached_tokens_details" in end.edits for end in ends[:2])
    assert "return_cached_tokens_details" not in ends[2].edits


async def test_each_tier_stands_in_the_turn_log(gateway: Governed, served: Served) -> None:
    body = chat_body(words(5, 700), max_tokens=4)
    await gateway.chat(**body)
    await gateway.chat(**body)
    async with httpx.AsyncClient(base_url=served.url, timeout=120, trust_env=False) as direct:
        for seed in range(100, 105):  # more than the device pool holds, less than the host pool
            pushing = chat_body(words(seed, 1500), max_tokens=2)
            (await direct.post("/v1/chat/completions", json=pushing)).raise_for_status()
        await gateway.chat(**body)
        await asyncio.sleep(1)  # pages go to L3 in a thread of the engine
        (await direct.post("/flush_cache?timeout=20")).raise_for_status()
    await gateway.chat(**body)
    cold, device, host, storage = [end.usage for end in await gateway.ends()]
    assert cold.cached_tokens == 0
    assert cold.prompt_tokens is not None
    pages = cold.prompt_tokens // PAGE * PAGE
    assert (device.cached_device_tokens, device.cached_host_tokens, device.cached_storage_tokens) == (pages, 0, 0)
    assert (host.cached_device_tokens, host.cached_host_tokens, host.cached_storage_tokens) == (0, pages, 0)
    assert (storage.cached_device_tokens, storage.cached_host_tokens, storage.cached_storage_tokens) == (0, 0, pages)


async def test_a_client_that_leaves_frees_the_engine_at_once(gateway: Governed, engine: Sglang) -> None:
    body = chat_body(words(6, 50), max_tokens=4000, stream=True, ignore_eos=True)
    async with gateway.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
        assert await running(engine) == 1
    async with asyncio.timeout(1.8):  # by itself the engine looks for lost clients after 2 s
        while await running(engine):  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.02)
    assert (await gateway.end()).state is TurnState.CLIENT_ABORTED


async def test_a_generation_goes_on_from_its_ids_with_nothing_lost_or_doubled(engine: Sglang) -> None:
    cap = 120
    body = chat_body(words(7, 200), max_tokens=cap, stream=True, ignore_eos=True)
    body |= {"stream_options": {"include_usage": True}, "return_cached_tokens_details": True}
    # What is computed anew differs by rounding from what is cached, so all begin at the same cached page.
    await generate(engine, call_of(body | {"max_tokens": 1}, "t-warm"))
    whole = await generate(engine, call_of(body, "t-whole"))
    assert len(whole.ids.output) == cap

    call = call_of(body, "t-paused")
    paused = await generate(engine, call, pause_after=40)
    written = paused.ids.output
    assert 40 <= len(written) < cap
    assert paused.ids.prompt == whole.ids.prompt
    assert written == whole.ids.output[: len(written)]
    assert paused.reader.answer.finish_reason == "abort"
    assert paused.reader.answer.usage.completion_tokens == len(written)

    rest_call = continue_from(call, paused.ids)
    rest = await generate(engine, rest_call)
    assert rest.ids.prompt == paused.ids.prompt + written
    assert len(written) + len(rest.ids.output) == cap
    assert (rest.reader.answer.usage.cached_tokens or 0) >= len(rest.ids.prompt) // PAGE * PAGE - PAGE

    again = await generate(engine, msgspec.structs.replace(rest_call, turn_id="t-again", body=renamed(rest_call)))
    assert again.ids == rest.ids
    assert again.text == rest.text


class Generation:
    """What one generation gave."""

    def __init__(self) -> None:
        self.ids = TokenIds((), ())
        self.reader = ChatReader()
        self.text = ""


def call_of(body: dict[str, Any], name: str) -> EngineCall:
    facts = TurnFacts(turn_id=name, agent_class=AgentClass.NORMAL)
    added = Sglang("http://127.0.0.1:9").capabilities.request_additions(Endpoint.CHAT, facts)
    return EngineCall(endpoint=Endpoint.CHAT, body=msgspec.json.encode(body | dict(added)), turn_id=name)


def renamed(call: EngineCall) -> bytes:
    body = msgspec.json.decode(call.body)
    return msgspec.json.encode(body | {"rid": "t-again-------------" + "-0001"})


async def generate(engine: Sglang, call: EngineCall, pause_after: int | None = None) -> Generation:
    """To the end, or until so many pieces of text have come; then the stream is read to the end it takes."""
    made, splitter = Generation(), SseSplitter()
    async with engine.open(asking_for_ids(call)) as answer:
        assert answer.status == 200
        async for chunk in answer.chunks():
            for event in splitter.feed(chunk):
                ids = ids_in(event)
                if ids is not None:
                    made.ids = ids
                elif event.data is not None:
                    made.reader.on_data(event.data)
                    made.text += text_in(event.data)
            if pause_after is not None and made.reader.answer.content_events >= pause_after:
                pause_after = None
                await engine.abort(call)
    return made


def text_in(data: bytes) -> str:
    if data == b"[DONE]":
        return ""
    return "".join(choice["delta"].get("content") or "" for choice in msgspec.json.decode(data)["choices"])


async def ask(engine: Sglang, endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    call = EngineCall(endpoint=endpoint, body=msgspec.json.encode(body), turn_id="t-ask")
    async with engine.open(call) as answer:
        assert answer.status == 200
        decoded: dict[str, Any] = msgspec.json.decode(b"".join([chunk async for chunk in answer.chunks()]))
        return decoded


async def streamed(gateway: Governed, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with gateway.client() as client:
        answer = await client.post("/v1/chat/completions", json=body)
    events = [event.data for event in SseSplitter().feed(answer.raise_for_status().content)]
    assert events[-1] == b"[DONE]"
    return [msgspec.json.decode(data) for data in events[:-1] if data is not None]


async def running(engine: Sglang) -> int:
    load = await engine.load()
    return (load.running or 0) + (load.queued or 0)

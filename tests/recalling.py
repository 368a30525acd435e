"""What the tests of the recall tool share: an archive with texts, requests, and answers as a client has them."""

from __future__ import annotations

from typing import Any

import msgspec

from governor.compress.messages import handle_of
from governor.compress.recall import NAME
from governor.store.archive_model import LeftText
from governor.wire.sse import SseSplitter
from serve.scripted import Behaviour, ScriptedCall, ScriptedEngine
from tests.archive_records import compaction, head
from tests.harness import Governed
from tests.pausing import Played
from tests.twin_server import WEATHER

POLICY = '[compression]\nmode = "enforce"\nrecall_tool = true\n'
TEXT = "The port of the second cache is 7143, and its key is b6-eleven."


def handle(text: str = TEXT) -> str:
    return handle_of(msgspec.json.encode(text))


def keep(gateway: Governed, text: str = TEXT, agent: str = "alice") -> None:
    """A text that has left a prompt of the agent's."""
    left = LeftText(handle=handle(text), body=msgspec.json.encode(text), what="read_file")
    gateway.archive.keep(head(left.handle, agent=agent), (left,), compaction(f"t-{left.handle}-{agent}", agent=agent))


def recall(*handles: str, say: str = "", reasoning: str = "", **more: Any) -> Behaviour:
    """A model that recalls."""
    calls = tuple(ScriptedCall(NAME, {"handle": handle, **more}) for handle in handles)
    return Behaviour(say=say, reasoning=reasoning, calls=calls)


def request(**fields: Any) -> dict[str, Any]:
    question = {"role": "user", "content": "Which port has the second cache?"}
    return {"model": "m", "messages": [question], "tools": [WEATHER], "max_tokens": 500} | fields


async def streamed(gateway: Governed, agent: str = "alice", **fields: Any) -> Played:
    """A stream as its client sees it."""
    played, splitter = Played(), SseSplitter()
    body = request(stream=True, stream_options={"include_usage": True}) | fields
    async with (
        gateway.client(agent) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        async for chunk in answer.aiter_bytes():
            played.raw += chunk
            for event in splitter.feed(chunk):
                if event.data is not None and b'"error"' not in event.data:
                    played.read(event.data)
    return played


def sent(engine: ScriptedEngine, number: int = -1) -> dict[str, Any]:
    """A request that the engine has had."""
    body: dict[str, Any] = msgspec.json.decode(engine.hits[number].body)
    return body


def results(engine: ScriptedEngine, number: int = -1) -> list[str]:
    """What tools have said in it."""
    return [message["content"] for message in sent(engine, number)["messages"] if message["role"] == "tool"]

"""Aborted and gone on from its ids, once or several times, an answer is the uninterrupted one: by the governor's own
adapter, in the text, in the thinking phase and inside a tool call."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from governor.types import AgentClass
from governor.wire.sse import SseSplitter
from serve.engine import Endpoint, EngineCall, TokenIds, TurnFacts
from serve.engines.sglang import Sglang
from serve.engines.sglang_fields import asking_for_ids, continue_from, ids_in
from serve.twin_server.pieces import END_THINK, END_TOOL_CALL, TOOL_CALL, decode
from tests.twin_server import WEATHER, twin_server

TURN = "t-0123456789abcdef"
LONG = "a text that is long enough to be stopped in its middle, twice; " * 6


def wished(**twin: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "Tell me."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
        "custom_params": {"twin": twin},
    }


PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
CASES = {
    "text": wished(text=LONG) | PLAIN,
    "reasoning": wished(reasoning=LONG, text="So it is."),
    "thinking ends in between": wished(reasoning=LONG[:300], text=LONG),
    "tool call": wished(calls=[{"name": "get_weather", "arguments": {"days": 3, "city": LONG}}])
    | PLAIN
    | {"tools": [WEATHER]},
    "drawn": wished(tokens=160) | {"tools": [WEATHER]},
}


class Played:
    """One generation: its ids, what its stream said, how it ended."""

    def __init__(self) -> None:
        self.ids = TokenIds((), ())
        self.reasoning = self.content = ""
        self.finish = ""
        self.usage: dict[str, Any] = {}

    def read(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        chunk = msgspec.json.decode(data)
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.reasoning += choice["delta"].get("reasoning_content") or ""
            self.content += choice["delta"].get("content") or ""
            self.finish = choice["finish_reason"] or self.finish


async def play(engine: Sglang, call: EngineCall, stop_after: int | None = None) -> Played:
    """To its end, or aborted after so many pieces; either way to the end of its stream."""
    played, splitter, pieces = Played(), SseSplitter(), 0
    async with engine.open(asking_for_ids(call)) as answer:
        assert answer.status == 200
        async for chunk in answer.chunks():
            for event in splitter.feed(chunk):
                ids = ids_in(event)
                if ids is not None:
                    played.ids = ids
                elif event.data is not None:
                    played.read(event.data)
                    pieces += 1
            if stop_after is not None and pieces >= stop_after:
                stop_after = None
                await engine.abort(call)
    return played


def first_call(body: dict[str, Any]) -> EngineCall:
    facts = TurnFacts(turn_id=TURN, agent_class=AgentClass.NORMAL)
    added = Sglang("http://127.0.0.1:9").capabilities.request_additions(Endpoint.CHAT, facts)
    return EngineCall(endpoint=Endpoint.CHAT, body=msgspec.json.encode(body | dict(added)), turn_id=TURN)


@pytest.mark.parametrize("name", CASES)
async def test_what_is_joined_is_the_whole(name: str) -> None:
    body = CASES[name]
    async with twin_server(speed=1) as twin:
        engine = Sglang(twin.url)
        whole = await play(engine, first_call(body))
        call = first_call(body)
        parts: list[Played] = []
        while not parts or parts[-1].finish == "abort":
            parts.append(await play(engine, call, stop_after=3 if len(parts) < 2 else None))
            if parts[-1].finish == "abort":
                call = continue_from(call, parts[-1].ids)
        await engine.aclose()
    assert len(parts) == 3
    for before, after in pairwise(parts):
        assert after.ids.prompt == before.ids.prompt + before.ids.output
        cached = after.usage["prompt_tokens_details"]["cached_tokens"]
        assert cached >= len(before.ids.prompt) // 64 * 64  # an abort keeps what was computed, to its last state
    joined = tuple(token for part in parts for token in part.ids.output)
    assert joined == whole.ids.output
    # A parser that has not seen a call begin sees no call: what the client gets of it is the governor's to join.
    assert (parts[-1].finish, whole.finish) == (("stop", "tool_calls") if name == "tool call" else (whole.finish,) * 2)
    assert decode(joined) == decode(whole.ids.output)
    thought = "".join(part.reasoning for part in parts)
    if name == "text":
        assert "".join(part.content for part in parts) == whole.content
    elif name == "reasoning":
        assert (thought, END_THINK in parts[-1].ids.output) == (whole.reasoning, True)
    elif name == "tool call":
        assert (TOOL_CALL in parts[0].ids.output, END_TOOL_CALL in parts[-1].ids.output) == (True, True)


async def test_a_thinking_budget_closes_the_phase_and_the_content_follows() -> None:
    """What the governor does with it: the ids of ``</think>`` behind what was thought, and thinking switched off."""
    body = wished(reasoning=LONG, text="So it is.")
    async with twin_server(speed=1) as twin:
        engine = Sglang(twin.url)
        call = first_call(body)
        thought = await play(engine, call, stop_after=5)
        closing = (await twin.post("/tokenize", prompt="\n</think>\n\n")).json()["tokens"]
        rest = continue_from(call, TokenIds(thought.ids.prompt, (*thought.ids.output, *closing)))
        changed = msgspec.json.decode(rest.body) | {"chat_template_kwargs": {"enable_thinking": False}}
        said = await play(engine, msgspec.structs.replace(rest, body=msgspec.json.encode(changed)))
        await engine.aclose()
    assert 0 < len(thought.reasoning) < len(LONG)
    assert (said.reasoning, said.content, said.finish) == ("", "So it is.", "stop")

"""The planner keeps the event loop free while much text is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from governor.gateway.planner import Planner, prompt_of
from governor.policy.model import Policy
from governor.tokens.chain import SessionIndex
from governor.tokens.model import PromptParts
from governor.types import AgentName, TokenCount
from governor.wire.request import parse
from serve.engine import Endpoint, ModelCard
from serve.engines.openai_upstream import OpenAIUpstream


class NotingCounter:
    """Counts bytes, and notes the thread it is called in."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def count(self, prompt: PromptParts) -> TokenCount:
        self.threads.append(threading.get_ident())
        return TokenCount(tokens=sum(map(len, prompt.messages)), margin=0, source="tokenizer")

    def sizes(self, messages: Sequence[bytes]) -> list[int]:
        return [len(raw) for raw in messages]

    def learn(self, counted: TokenCount, reported_prompt_tokens: int) -> None:
        pass


async def test_much_new_text_is_counted_in_a_thread_and_a_conversation_that_grew_is_not() -> None:
    counter = NotingCounter()
    engine = OpenAIUpstream("engine", "http://127.0.0.1:9")
    planner = Planner(engine, SessionIndex(), counter)
    messages = [{"role": "user", "content": "long " * 20_000}]

    async def plan() -> None:
        body = msgspec.json.encode({"model": "m", "messages": messages})
        request = parse(Endpoint.CHAT, body)
        prompt = prompt_of(request)
        located = planner.locate(AgentName("alice"), request, prompt, {})
        measure = await planner.measure(request, prompt, located, ModelCard(id="m", window_tokens=1 << 20), Policy())
        assert measure.count.tokens > 100_000

    await plan()
    messages.append({"role": "assistant", "content": "Well."})
    messages.append({"role": "user", "content": "Go on."})
    await plan()
    await engine.aclose()
    here = threading.get_ident()
    assert [thread == here for thread in counter.threads] == [False, True]

"""A conversation goes on from the very tokens on the real engine, and they are found in its cache.

The model's weights are random, so its answers end at their cap and are full of characters that it did not finish.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from governor.store.model import TurnClosed
from governor.types import TurnState
from tests.conversing import Client, Hermes, OpenClaw
from tests.harness import Governed, governed
from tests.sglang.server import SglangServer
from tests.sglang_adapter import MODEL, words

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

EXACT = '[request]\nhistory = "exact"\n'
PAGE, INTERVAL = 64, 256
WRITTEN = 300


@pytest.fixture
async def gateway(sglang_server: SglangServer, tmp_path: Path) -> AsyncIterator[Governed]:
    agents, policies = ("alice", "bob"), {"alice": EXACT}
    async with governed(
        sglang_server.url, tmp_path, engine_kind="sglang", agents=agents, policies=policies
    ) as governor:
        yield governor
        await governor.assert_idle()


def body_of(client: Client, max_tokens: int) -> dict[str, Any]:
    plain = {"temperature": 0, "ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
    return {"model": MODEL, "messages": client.messages, "max_tokens": max_tokens} | plain


async def converse(gateway: Governed, agent: str, client: Client, seed: int) -> list[TurnClosed]:
    """A long answer, and two short ones."""
    client.ask(words(seed, 400))
    for max_tokens in (WRITTEN, 16, 16):
        answer = (await gateway.chat(agent, **body_of(client, max_tokens))).raise_for_status().json()
        client.on_answer(answer["choices"][0]["message"])
        client.ask(words(seed + 1, 20))
    ends = await gateway.ends()
    assert [end.state for end in ends] == [TurnState.TRUNCATED] * 3
    return ends


def recomputed(before: TurnClosed, turn: TurnClosed) -> int:
    """Tokens of the turn before, prompt and output, that were computed once more."""
    was, cached = before.usage, turn.usage.cached_tokens
    assert was.prompt_tokens is not None
    assert was.completion_tokens is not None
    assert cached is not None
    return was.prompt_tokens + was.completion_tokens - cached


@pytest.mark.parametrize("client", [Hermes, OpenClaw])
async def test_the_engine_has_what_it_wrote(
    client: type[Client], gateway: Governed, sglang_server: SglangServer
) -> None:
    conversation = client(words(70, 20) + client.__name__)
    first, second, third = await converse(gateway, "alice", conversation, 71)
    assert f"history restored: +{WRITTEN} tokens" in second.edits
    assert "history restored: +16 tokens" in third.edits
    assert [end.flags for end in (first, second, third)] == [()] * 3
    assert recomputed(first, second) <= PAGE + INTERVAL < WRITTEN + PAGE
    assert recomputed(second, third) <= PAGE + INTERVAL
    one, two, _ = gateway.governor.history.book.answers()
    given = two.ids[: -two.output_tokens]
    assert given[: len(one.ids)] == one.ids
    messages = [*conversation.history[:4], *conversation.messages[len(conversation.history) :]]
    asked = body_of(conversation, 1) | {"messages": messages}
    async with httpx.AsyncClient(base_url=sglang_server.url, trust_env=False, timeout=30) as engine:
        as_sent = (await engine.post("/v1/tokenize", json=asked)).raise_for_status().json()["tokens"]
    tail = list(given[len(one.ids) :])
    assert as_sent[-len(tail) :] == tail
    assert second.usage.prompt_tokens == len(given)


async def test_without_it_the_answer_is_computed_once_more(gateway: Governed) -> None:
    first, second, _ = await converse(gateway, "bob", OpenClaw(words(80, 20)), 81)
    assert "restored" not in str(second.edits)
    assert recomputed(first, second) >= WRITTEN

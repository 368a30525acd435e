"""Answers in pieces on the real engine: the seams are exact, to the token and to the byte.

What follows a seam need not equal the uninterrupted answer: the engine computes the last page anew, by prefill instead
of decode, which rounds otherwise. What must hold is that the client has got the text of exactly the tokens that the
engine has been told to go on from. The model's weights are random, so it writes characters cut by tokens all the time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from serve.engine import EngineCall, TokenIds
from serve.engines.sglang import Sglang
from serve.engines.sglang_continuation import Ask, SglangContinuation
from tests.pausing import Played, call_of, play
from tests.sglang.server import SglangServer
from tests.sglang_adapter import TOOLS, chat_body, words

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

CAP = 160
"""Output tokens of each answer."""
THINKING_START, THINKING_END = "<think>", "</think>"


class Watched(SglangContinuation):
    """Remembers what passes through it."""

    def __init__(self, ask: Ask, abort: Callable[[EngineCall], Awaitable[None]]) -> None:
        super().__init__(ask, abort)
        self.forget()

    def forget(self) -> None:
        self.told: list[TokenIds] = []
        """Of each generation, at its end."""
        self.went_on_from: list[TokenIds] = []
        self.cached: list[int] = []
        """Prompt tokens from cache, of each generation."""

    def ids_in(self, event: bytes, data: bytes) -> TokenIds | None:
        ids = super().ids_in(event, data)
        if ids is not None:
            self.told.append(ids)
        elif b'"cached_tokens":' in data:
            usage = msgspec.json.decode(data)["usage"]
            self.cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        return ids

    def next(self, call: EngineCall, ids: TokenIds, *, thinking: bool) -> EngineCall:
        self.went_on_from.append(ids)
        return super().next(call, ids, thinking=thinking)


class WatchedSglang(Sglang):
    """The adapter, watched."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.watched = Watched(self.ask, self.abort)

    @property
    def continuation(self) -> Watched:
        return self.watched


@pytest.fixture
async def engine(sglang_server: SglangServer) -> AsyncIterator[WatchedSglang]:
    adapter = WatchedSglang(sglang_server.url)
    await adapter.describe()
    yield adapter
    await adapter.aclose()


def long_answer(content: str, **fields: Any) -> dict[str, Any]:
    body = chat_body(content, stream=True, ignore_eos=True, max_tokens=CAP)
    return body | {"stream_options": {"include_usage": True}} | fields


_numbers = count()


async def played(engine: WatchedSglang, body: dict[str, Any], moments: Sequence[int] = ()) -> Played:
    """Under a name of its own: the engine aborts what has the name of a request that ended two seconds ago."""
    engine.watched.forget()
    return await play(engine, call_of(engine, body, f"t-{next(_numbers):016x}"), moments)


async def text_of(engine: WatchedSglang, tokens: Sequence[int]) -> str:
    """As the engine streams it: a token of the model that its tokenizer does not have is streamed as token 0."""
    asked = {"tokens": [[token] for token in tokens], "skip_special_tokens": False}
    texts = (await engine.ask("POST", "/v1/detokenize", asked))["text"]
    known = [token if text else 0 for token, text in zip(tokens, texts, strict=True)]
    (text,) = await engine.watched.texts([known])
    return text


async def assert_exact(engine: WatchedSglang, answer: Played) -> tuple[int, ...]:
    """The client has got the text of the very tokens that the engine has written and was told, and their number."""
    watched, view = engine.watched, answer.seen
    assert len(watched.went_on_from) == answer.pauses == len(watched.told) - 1
    for before, ids, after in zip(watched.told, watched.went_on_from, watched.told[1:], strict=False):
        assert before.output[: len(ids.output)] == ids.output
        assert after.prompt == (*ids.prompt, *ids.output)
    tokens = *(token for ids in watched.went_on_from for token in ids.output), *watched.told[-1].output
    text = await text_of(engine, tokens)
    ended = f"{view.reasoning}{THINKING_END}{view.content}" if view.reasoning and view.content else None
    text = text.replace(THINKING_START, "")  # random weights may write it anywhere, and the parser takes it out
    assert text in (ended, view.reasoning + view.content)
    assert (view.finishes, view.roles, view.dones, len(view.ids)) == (["length"], 1, 1, 1)
    (usage,) = view.usage
    assert usage["completion_tokens"] == len(tokens) == CAP
    assert usage["prompt_tokens"] == len(watched.told[0].prompt)
    assert usage["total_tokens"] == usage["prompt_tokens"] + CAP
    return tokens


@pytest.mark.parametrize("thinking", [True, False], ids=["reasoning", "text"])
async def test_the_seams_are_exact(thinking: bool, engine: WatchedSglang) -> None:
    body = long_answer(words(40, 1300), chat_template_kwargs={"enable_thinking": thinking}, tools=TOOLS)
    await played(engine, body)  # all begin at the same cached page
    await played(engine, body)
    whole = engine.watched.told[0].output
    for moments in ([20], [5, 30, 55, 60, 90]):
        answer = await played(engine, body, moments)
        assert answer.pauses == len(moments)
        tokens = await assert_exact(engine, answer)
        first = engine.watched.went_on_from[0].output
        assert whole[: len(first)] == first
        assert (bool(answer.seen.reasoning), bool(answer.seen.content)) == (thinking, not thinking)
        for ids, cached in zip(engine.watched.told[1:], engine.watched.cached[1:], strict=True):
            assert cached >= 0.95 * len(ids.prompt)
        print(f"{len(moments)} pauses; equal to the uninterrupted answer: {tokens == whole}")


async def test_thinking_may_end_before_or_behind_a_seam(engine: WatchedSglang) -> None:
    """The end of thinking is made likely, since random weights do not favour it."""
    ends = await engine.ask("POST", "/v1/tokenize", {"prompt": THINKING_END})
    bias = {str(ends["tokens"][0]): 4.5}
    body = long_answer(words(41, 300), chat_template_kwargs={"enable_thinking": True}, logit_bias=bias, temperature=0.8)
    phases: set[tuple[bool, bool]] = set()
    for moment in range(4, 60, 8):
        answer = await played(engine, body, [moment, moment + 12])
        await assert_exact(engine, answer)
        phases.add((bool(answer.seen.reasoning), bool(answer.seen.content)))
    assert (True, True) in phases

"""The scripted engine as an engine: counts, caches, checks the window, generates at its pace, fails on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from serve.scripted.answer import Answer, compose
from serve.scripted.ask import Ask
from serve.scripted.behaviour import Behaviour, Knobs
from serve.scripted.connection import Exchange
from serve.scripted.errors import Refusal, error_body, overflow, refusal
from serve.scripted.player import encoder_for
from serve.scripted.script import Ending, Framing
from serve.scripted.tokens import PrefixCache, count_tokens
from serve.scripted.wire import Encoder

_SSE_HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
_EVENTS_BETWEEN_YIELDS = 8

Decide: TypeAlias = Callable[[Ask], Behaviour]


class Pool:
    """KV tokens of the calls being answered: prompt plus output cap of each, once for every choice."""

    def __init__(self, capacity_tokens: int | None) -> None:
        self.capacity_tokens = capacity_tokens
        self.used_tokens = 0
        self.peak_tokens = 0
        self.running = 0
        self.peak_running = 0
        self.overflows = 0
        """Calls that did not fit beside the running ones."""

    @contextmanager
    def booked(self, tokens: int) -> Iterator[None]:
        self.used_tokens += tokens
        self.running += 1
        self.peak_tokens = max(self.peak_tokens, self.used_tokens)
        self.peak_running = max(self.peak_running, self.running)
        if self.capacity_tokens is not None and self.used_tokens > self.capacity_tokens:
            self.overflows += 1
        try:
            yield
        finally:
            self.used_tokens -= tokens
            self.running -= 1


class Conversation:
    """Answers generation calls. One instance is one engine with its cache."""

    def __init__(self, knobs: Knobs) -> None:
        self.pool = Pool(knobs.pool_tokens)
        self._knobs = knobs
        self._cache = PrefixCache(knobs.remembered_prompts, knobs.counting)
        self._answered = 0

    async def answer(self, exchange: Exchange, ask: Ask, behaviour: Behaviour) -> None:
        """Answer one call as the behaviour says."""
        prompt = ask.prompt()
        prompt_tokens = count_tokens(prompt, self._knobs.counting)
        output_tokens = ask.max_tokens or self._knobs.answer_tokens
        with self.pool.booked(prompt_tokens + output_tokens * ask.choices):
            if delay_s := behaviour.delay_s + self._knobs.head_delay_s:
                await asyncio.sleep(delay_s)
            if behaviour.hang_s is not None:
                await asyncio.sleep(behaviour.hang_s)
                await exchange.end(Ending.CUT)
            elif behaviour.ends_before_head:
                await exchange.end(behaviour.ending, close=True)
            elif (refused := self._refusal(ask, behaviour, prompt_tokens)) is not None:
                await exchange.reply(refused.status, refused.body, refused.headers)
            else:
                await self._generate(exchange, ask, behaviour, prompt, prompt_tokens)

    def _refusal(self, ask: Ask, behaviour: Behaviour, prompt_tokens: int) -> Refusal | None:
        if behaviour.status >= 400:
            return refusal(ask.dialect, behaviour)
        window = behaviour.window_tokens or self._knobs.window_tokens
        wording = behaviour.overflow or self._knobs.overflow
        if behaviour.overflow is not None:
            claimed = prompt_tokens if prompt_tokens >= window else window + 1
            return overflow(ask.dialect, wording, prompt_tokens=claimed, output_tokens=None, window_tokens=window)
        cap = ask.max_tokens
        if prompt_tokens < window and prompt_tokens + (cap or 0) <= window:
            return None
        exceeding_cap = cap if prompt_tokens < window else None
        return overflow(
            ask.dialect, wording, prompt_tokens=prompt_tokens, output_tokens=exceeding_cap, window_tokens=window
        )

    async def _generate(
        self, exchange: Exchange, ask: Ask, behaviour: Behaviour, prompt: str, prompt_tokens: int
    ) -> None:
        knobs = self._knobs
        cached_tokens = self._cache.cached_tokens(prompt, prompt_tokens)
        self._answered += 1
        answer = compose(
            ask,
            behaviour,
            knobs,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            number=self._answered,
            created=int(time.time()),
        )
        if knobs.prefill_tokens_per_s:
            await asyncio.sleep((prompt_tokens - cached_tokens) / knobs.prefill_tokens_per_s)
        self._cache.remember(prompt)
        encoder = encoder_for(ask, answer)
        if ask.stream:
            await self._stream(exchange, encoder, answer, behaviour)
        else:
            await self._whole(exchange, ask, encoder, answer, behaviour)
        self._cache.remember(prompt + answer.text, replaces=prompt)

    async def _stream(self, exchange: Exchange, encoder: Encoder, answer: Answer, behaviour: Behaviour) -> None:
        await exchange.start(200, _SSE_HEADERS, Framing.CHUNKED)
        events_left = behaviour.break_after if behaviour.break_after is not None else len(answer.pieces) + 1
        rate = self._knobs.decode_tokens_per_s
        clock = asyncio.get_running_loop().time
        started_at, written_tokens = clock(), 0
        if events_left > 0:
            await exchange.write(encoder.opening())
        for number, piece in enumerate(answer.pieces[: max(0, events_left - 1)]):
            if rate:
                written_tokens += piece.tokens
                await asyncio.sleep(max(0.0, started_at + written_tokens / rate - clock()))
            elif number % _EVENTS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
            await exchange.write(encoder.piece(piece), tokens=piece.tokens)
        if behaviour.break_after is None:
            await exchange.write(encoder.closing())
        elif behaviour.error_frame:
            code = 500 if behaviour.code is None else behaviour.code
            await exchange.write(encoder.error(behaviour.message or "The engine failed.", code))
            await exchange.end(close=True)
        else:
            await exchange.end(behaviour.ending, close=True)

    async def _whole(
        self, exchange: Exchange, ask: Ask, encoder: Encoder, answer: Answer, behaviour: Behaviour
    ) -> None:
        if self._knobs.decode_tokens_per_s:
            await asyncio.sleep(answer.usage.completion_tokens / self._knobs.decode_tokens_per_s)
        body = encoder.whole()
        if behaviour.break_after is None:
            await exchange.reply(200, body)
        elif behaviour.error_frame:
            code = 500 if behaviour.code is None else behaviour.code
            failure = error_body(ask.dialect, behaviour.message or "The engine failed.", "server_error", code)
            await exchange.reply(500, failure)
        else:
            head = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
            await exchange.start(200, head, Framing.LENGTH)
            await exchange.write(body[: len(body) // 2])
            await exchange.end(behaviour.ending, close=True)

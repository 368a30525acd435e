"""Plays a script's steps on a connection."""

from __future__ import annotations

import asyncio

from serve.scripted.answer import Answer, Part, Piece, Usage
from serve.scripted.ask import Ask, Dialect
from serve.scripted.connection import Exchange
from serve.scripted.script import Close, Ending, Hang, Head, Sleep, Step, Tokens, Write
from serve.scripted.wire import ChatEncoder, CompletionsEncoder, Encoder
from serve.scripted.wire_messages import MessagesEncoder
from serve.scripted.wire_responses import ResponsesEncoder

_WORD = "tok "


def encoder_for(ask: Ask, answer: Answer) -> Encoder:
    """The form of the API that was asked."""
    if ask.dialect is Dialect.MESSAGES:
        return MessagesEncoder(answer)
    if ask.dialect is Dialect.RESPONSES:
        return ResponsesEncoder(answer)
    if ask.dialect is Dialect.COMPLETIONS:
        return CompletionsEncoder(ask, answer)
    return ChatEncoder(ask, answer)


async def play(exchange: Exchange, steps: tuple[Step, ...], ask: Ask) -> None:
    """Write the answer. ``ask`` gives generated tokens their form."""
    is_event_stream = False
    for step in steps:
        if isinstance(step, Head):
            is_event_stream = any(
                name.lower() == "content-type" and value.startswith("text/event-stream") for name, value in step.headers
            )
            await exchange.start(step.status, step.headers, step.framing)
        elif isinstance(step, Write):
            await exchange.write(step.data, flush=step.flush)
        elif isinstance(step, Tokens):
            await _tokens(exchange, step, ask, is_event_stream=is_event_stream)
        elif isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Hang):
            await asyncio.sleep(step.seconds)
            await exchange.end(Ending.CUT)
            return
        elif isinstance(step, Close):
            await exchange.end(step.how, close=True)
            return


async def _tokens(exchange: Exchange, step: Tokens, ask: Ask, *, is_event_stream: bool) -> None:
    """Generated tokens as events of the API, or dribbled into one JSON body."""
    piece = Piece(Part.TEXT, _WORD, 1)
    answer = Answer(
        id="script",
        created=0,
        model=ask.model,
        pieces=(piece,) * step.count,
        calls=(),
        finish="stop",
        usage=Usage(prompt_tokens=0, completion_tokens=step.count, reasoning_tokens=0, cached_tokens=None),
    )
    encoder = encoder_for(ask, answer)
    if not is_event_stream:
        opening, word, closing = encoder.whole().partition((_WORD * step.count).encode())
        await exchange.write(opening)
        for at in range(0, len(word), len(_WORD)):
            await exchange.write(word[at : at + len(_WORD)], tokens=1)
            await asyncio.sleep(step.interval_s)
        await exchange.write(closing)
        return
    if ask.dialect in (Dialect.MESSAGES, Dialect.RESPONSES):
        await exchange.write(encoder.opening())
    for _ in range(step.count):
        await exchange.write(encoder.piece(piece), tokens=1)
        await asyncio.sleep(step.interval_s)
    if step.closes:
        await exchange.write(encoder.closing())

"""Paired rounds: the same bodies straight to the engine and through the gateway, in turn, and what that differs by.

A machine's speed drifts, so nothing is compared over time: each request through the gateway has its own twin that went
straight to the engine within the same second, and only differences of twins are summed up. Each round has a second
straight twin; what those two differ by is the noise that no figure here can be finer than.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import msgspec

from bench.client import Stream, Timing
from bench.conversation import Conversation, conversations
from bench.processes import MODEL, Gateway, Upstream

_OVERLAP = 1.25


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one round is: every stream asks once, at its own moment, and all are answering at once for a while."""

    prompt_tokens: int
    streams: int
    rounds: int
    requests_per_s: float
    """Arrivals, spread evenly and in random order over a round's beginning."""
    tokens_per_s: float
    """Decode pace of each stream."""

    @property
    def spread_s(self) -> float:
        return (self.streams - 1) / self.requests_per_s

    @property
    def answer_tokens(self) -> int:
        """Enough that the first stream still decodes when the last one begins."""
        return max(16, round(self.spread_s * _OVERLAP * self.tokens_per_s))


class Twins(msgspec.Struct, frozen=True):
    """The same request three times."""

    straight: Timing
    through: Timing
    straight_again: Timing

    def added_s(self, moment: Callable[[Timing], float]) -> float:
        return moment(self.through) - moment(self.straight)

    def noise_s(self, moment: Callable[[Timing], float]) -> float:
        return abs(moment(self.straight_again) - moment(self.straight))


class Measured(msgspec.Struct, frozen=True):
    """All twins of a load; ``cold`` are those of each conversation's first request."""

    cold: Sequence[Twins]
    warm: Sequence[Twins]


async def run_rounds(
    load: Load, upstream: Upstream, gateway: Gateway, on_round: Callable[[], None] = lambda: None
) -> Measured:
    """Run a load. Raises :class:`~bench.client.BenchFailed`."""
    rng = random.Random(f"{load.prompt_tokens}/{load.streams}")
    fresh = conversations(load.prompt_tokens, seed="overhead", model=MODEL)
    talks = [next(fresh) for _ in range(load.streams)]
    is_new = [True] * load.streams
    cold: list[Twins] = []
    warm: list[Twins] = []
    async with AsyncExitStack() as stack:
        straight = [await stack.enter_async_context(Stream(upstream.url, None)) for _ in talks]
        through = [await stack.enter_async_context(Stream(gateway.url, gateway.key)) for _ in talks]
        await _warm_up(straight[0], through[0])
        for number in range(load.rounds + 1):
            bodies = [talk.body() for talk in talks]
            delays = [at / load.requests_per_s for at in range(load.streams)]
            rng.shuffle(delays)
            order = (through, straight, straight) if number % 2 else (straight, through, straight)
            timings = [await _round(streams, bodies, delays) for streams in order]
            if number % 2:
                timings[:2] = timings[1::-1]
            for new, twins in zip(is_new, map(Twins, *timings), strict=True):
                (cold if new else warm).append(twins)
            is_new = [talk.is_full for talk in talks]
            talks = [next(fresh) if talk.is_full else _grown(talk) for talk in talks]
            on_round()
    return Measured(cold, warm)


async def _round(streams: Sequence[Stream], bodies: Sequence[bytes], delays: Sequence[float]) -> list[Timing]:
    async def ask(stream: Stream, body: bytes, delay_s: float) -> Timing:
        await asyncio.sleep(delay_s)
        return await stream.ask(body)

    return await asyncio.gather(*map(ask, streams, bodies, delays))


def _grown(talk: Conversation) -> Conversation:
    talk.grow()
    return talk


async def _warm_up(*streams: Stream) -> None:
    """First use of code and sockets, in a conversation of its own."""
    talk = Conversation(1000, seed="warm-up", model=MODEL)
    for _ in range(2):
        for stream in streams:
            await stream.ask(talk.body())
        talk.grow()


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation between the values, the extremes included."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]

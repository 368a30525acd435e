"""Turns that are drawn: a generator of a trace as an endless script. Seeded; the same seed draws the same turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from governor.types import PromptShape, TurnKind
from serve.twin.trace import Distribution, Generator, Piece, PieceKind, Turn

ENDLESS_TOKENS = 10_000_000
"""Of an answer that does not stop by itself; more than any window."""


def draw(distribution: Distribution, random: Random) -> float:
    """One value."""
    value = distribution.median
    if distribution.sigma and value:
        value *= math.exp(random.gauss(0.0, distribution.sigma))
    value = max(value, distribution.low)
    return value if distribution.high is None else min(value, distribution.high)


def draw_tokens(distribution: Distribution, random: Random) -> int:
    """One value, whole and at least 1."""
    return max(1, round(draw(distribution, random)))


def turns_of(spec: Generator, random: Random) -> Iterator[Turn]:
    """The generator's turns, without end. The first of each conversation is fresh."""
    while True:
        for round_number in range(draw_tokens(spec.rounds, random)):
            yield from _round(spec, random, is_first=round_number == 0)


def _round(spec: Generator, random: Random, *, is_first: bool) -> Iterator[Turn]:
    """A user's message, the tool steps it takes, and the answer."""
    asked = draw_tokens(spec.first_tokens if is_first else spec.user_tokens, random)
    new = Piece(kind=PieceKind.USER, tokens=asked)
    shape = PromptShape.FRESH if is_first else PromptShape.CONTINUATION
    wait_s = draw(spec.think_s, random)
    for _ in range(round(draw(spec.steps, random))):
        yield _turn(spec, random, TurnKind.TOOL_STEP, shape, wait_s, new, spec.step_output)
        new = Piece(kind=PieceKind.TOOL, tokens=draw_tokens(spec.tool_tokens, random))
        shape, wait_s = PromptShape.CONTINUATION, draw(spec.tool_s, random)
    yield _turn(spec, random, TurnKind.TOOL_STEP, shape, wait_s, new, spec.final_output)


def _turn(
    spec: Generator,
    random: Random,
    kind: TurnKind,
    shape: PromptShape,
    after_s: float,
    new: Piece,
    output: Distribution,
) -> Turn:
    runs_away = random.random() < spec.runaway
    pieces: tuple[Piece, ...] = (new,)
    if spec.carrier_tokens:
        pieces = (new, Piece(kind=PieceKind.USER, tokens=spec.carrier_tokens))
    return Turn(
        agent=spec.agent,
        session=spec.session,
        kind=kind,
        after_s=after_s,
        shape=shape,
        echo=spec.echo,
        new=pieces,
        carrier_tokens=spec.carrier_tokens,
        output_tokens=ENDLESS_TOKENS if runs_away else draw_tokens(output, random),
        cap=spec.cap,
        accept_length=spec.accept_length,
    )

"""What the model says: an answer as generated tokens, before any API gives it a form. Pure."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from serve.scripted.ask import Ask, ToolCall
from serve.scripted.behaviour import Behaviour, Knobs
from serve.scripted.tokens import split_tokens

_SENTENCE = (
    "the cache holds a prefix of every prompt and each turn adds new tokens to it while an agent waits for one tool "
    "result or reads its file then plans what comes next in short clear steps that fit the window"
)
_WORDS = _SENTENCE.split()


class Part(StrEnum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


class Piece(msgspec.Struct, frozen=True):
    """What one event of a stream carries. A call begins with a piece without tokens."""

    part: Part
    text: str
    tokens: int
    call: int = 0
    """Index of the tool call."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int | None
    """``None``: the engine does not tell."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    """Unix seconds."""
    model: str
    pieces: tuple[Piece, ...]
    calls: tuple[ToolCall, ...]
    """With the arguments as far as they were generated."""
    finish: str
    """In OpenAI's words: ``stop``, ``length``, ``tool_calls``."""
    usage: Usage

    @property
    def text(self) -> str:
        return self.joined(Part.TEXT)

    @property
    def reasoning(self) -> str:
        return self.joined(Part.REASONING)

    def joined(self, part: Part) -> str:
        return "".join(piece.text for piece in self.pieces if piece.part is part)


def compose(
    ask: Ask,
    behaviour: Behaviour,
    knobs: Knobs,
    *,
    prompt: str,
    prompt_tokens: int,
    cached_tokens: int,
    number: int,
    created: int,
) -> Answer:
    """The answer of call ``number``, cut at the output cap or at the end of the window."""
    rng = random.Random(f"{knobs.seed}:{zlib.crc32(prompt.encode())}")  # noqa: S311 reproducible text, not a secret
    generated_by_default = None if behaviour.calls else knobs.answer_tokens
    segments = [
        (Part.REASONING, 0, _tokens(behaviour.reasoning, knobs.reasoning_tokens, rng)),
        (Part.TEXT, 0, _tokens(behaviour.say, generated_by_default, rng)),
    ]
    wanted = [
        ToolCall(f"call_{number:04d}{index:02d}", call.name, msgspec.json.encode(call.arguments).decode())
        for index, call in enumerate(behaviour.calls)
    ]
    segments += [(Part.CALL, index, split_tokens(call.arguments)) for index, call in enumerate(wanted)]

    room = ask.max_tokens if ask.max_tokens is not None else max(1, knobs.window_tokens - prompt_tokens)
    pieces: list[Piece] = []
    calls: list[ToolCall] = []
    produced = dict.fromkeys(Part, 0)
    is_cut = False
    for part, index, tokens in segments:
        if part is Part.CALL and is_cut:
            break
        kept = tokens[:room]
        is_cut = is_cut or len(kept) < len(tokens)
        room -= len(kept)
        produced[part] += len(kept)
        if part is Part.CALL:
            calls.append(msgspec.structs.replace(wanted[index], arguments="".join(kept)))
            pieces.append(Piece(part, "", 0, index))
        pieces += _pieces(part, index, kept, max(1, knobs.tokens_per_chunk))

    reported_prompt, reported_completion = behaviour.usage or (prompt_tokens, sum(produced.values()) * ask.choices)
    cached = cached_tokens if knobs.report_cached_tokens else None
    return Answer(
        id=f"{number:06d}",
        created=created,
        model=ask.model or knobs.model,
        pieces=tuple(pieces),
        calls=tuple(calls),
        finish=behaviour.finish or ("length" if is_cut else "tool_calls" if calls else "stop"),
        usage=Usage(
            prompt_tokens=reported_prompt,
            completion_tokens=reported_completion,
            reasoning_tokens=produced[Part.REASONING] * ask.choices,
            cached_tokens=cached if behaviour.cached_tokens is None else behaviour.cached_tokens,
        ),
    )


def _tokens(wanted: str | int | None, default: int | None, rng: random.Random) -> list[str]:
    if isinstance(wanted, str):
        return split_tokens(wanted)
    count = default if wanted is None else wanted
    if not count:
        return []
    first, *others = rng.choices(_WORDS, k=count)
    return [first, *(f" {word}" for word in others)]


def _pieces(part: Part, index: int, tokens: list[str], per_chunk: int) -> Iterator[Piece]:
    for at in range(0, len(tokens), per_chunk):
        chunk = tokens[at : at + per_chunk]
        yield Piece(part, "".join(chunk), len(chunk), index)

"""Prompts of exact lengths that nobody has asked before, the same for the same seed.

A prompt of tokens is put together from blocks of a tokenised text, so that it reads as text and speculation has
something to guess, behind sixteen tokens drawn at random: no two prompts share a page, nor a beginning. A prompt of
text does the same with sentences, and is counted by the engine until it is as long as it should be.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

_NONCE_TOKENS = 16
_NONCE_WORDS = 12
_BLOCK_TOKENS = 32
_CORPUS_SENTENCES = 400
_FILLER = " a"
_COUNTS = 8
"""At most so often is one prompt counted."""

_WHO = (
    "the engineer", "a colleague", "the old surveyor", "our neighbour", "the night shift", "a visitor", "the clerk",
    "my sister", "the captain", "a student", "the gardener", "the committee", "an apprentice", "the librarian",
)  # fmt: skip
_DID = (
    "measured", "repaired", "described", "carried", "counted", "painted", "found", "compared", "sold", "remembered",
    "forgot", "opened", "drew", "moved", "weighed", "inspected",
)  # fmt: skip
_WHAT = (
    "the second bridge", "a wooden box", "the north wall", "an empty harbour", "the long report", "a row of lamps",
    "the broken engine", "three letters", "the map of the valley", "a small garden", "the water tank", "an old clock",
    "the ledger", "two bicycles", "the stone stairs", "a bag of seeds",
)  # fmt: skip
_WHERE = (
    "near the station", "behind the mill", "on the upper floor", "beside the river", "in the cold store",
    "at the edge of town", "under the roof", "across the square", "by the western gate", "in the workshop",
)  # fmt: skip
_THEN = (
    "and wrote down what had changed", "before the rain came", "while nobody looked", "because the price had fallen",
    "and went home early", "although the key was missing", "and told everyone at noon", "after the train had left",
    "so that it could be used again", "and asked for more time",
)  # fmt: skip


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Either tokens or a text; ``tokens`` is how many it has, or should have."""

    tokens: int
    ids: tuple[int, ...] | None = None
    text: str = ""


class PromptMaker:
    """``tokens_of`` makes prompts of tokens; without it they are texts, which ``count`` measures where it can."""

    def __init__(
        self,
        seed: str,
        *,
        corpus: Sequence[int] | None = None,
        count: Callable[[str], Awaitable[int | None]] | None = None,
        template_tokens: int = 0,
        tokens_per_word: float = 1.0,
    ) -> None:
        self._seed = seed
        self._corpus = None if corpus is None else tuple(corpus)
        self._count = count
        self._template_tokens = template_tokens
        self._tokens_per_word = tokens_per_word
        self._nonces: set[tuple[object, ...]] = set()

    async def fresh(self, name: str, tokens: int) -> Prompt:
        """A prompt that begins like no other of this maker; the same for the same seed and name."""
        source = self._source(name)
        if self._corpus is not None:
            nonce = tuple(source.choices(self._corpus, k=_NONCE_TOKENS))
            self._must_be_new(nonce, name)
            return Prompt(tokens=tokens, ids=(nonce + self._blocks(source, tokens))[:tokens])
        words = tuple(source.choices(_NONCE_VOCABULARY, k=_NONCE_WORDS))
        self._must_be_new(words, name)
        return await self._text(" ".join(words), source, tokens)

    async def extended(self, prompt: Prompt, name: str, tokens: int) -> Prompt:
        """The same and ``tokens`` new ones at its end."""
        source = self._source(name)
        if prompt.ids is not None:
            return Prompt(tokens=prompt.tokens + tokens, ids=prompt.ids + self._blocks(source, tokens)[:tokens])
        return await self._text(prompt.text, source, prompt.tokens + tokens)

    async def diverged(self, prompt: Prompt, name: str, at: int) -> Prompt:
        """As long, the same up to token ``at``, and something else from there on."""
        if prompt.ids is not None:
            return await self.extended(Prompt(tokens=at, ids=prompt.ids[:at]), name, prompt.tokens - at)
        words = prompt.text.split(" ")
        kept = " ".join(words[: round(len(words) * at / prompt.tokens)])
        return await self._text(kept, self._source(name), prompt.tokens)

    def _source(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")  # noqa: S311 - has to be repeatable

    def _must_be_new(self, nonce: tuple[object, ...], name: str) -> None:
        if nonce in self._nonces:
            raise ValueError(f"the prompt {name!r} was made twice; it would find itself in the cache")
        self._nonces.add(nonce)

    def _blocks(self, source: random.Random, tokens: int) -> tuple[int, ...]:
        corpus = self._corpus or ()
        found: list[int] = []
        while len(found) < tokens:
            at = source.randrange(max(1, len(corpus) - _BLOCK_TOKENS))
            found += corpus[at : at + _BLOCK_TOKENS]
        return tuple(found[:tokens])

    async def _text(self, beginning: str, source: random.Random, tokens: int) -> Prompt:
        """Words are added until the engine counts so many, or by their average where it does not count."""
        wanted = tokens - self._template_tokens
        words = beginning.split(" ")
        need = round(wanted / self._tokens_per_word)
        stream = _words(source)
        text = " ".join([*words, *(next(stream) for _ in range(need - len(words)))])
        if self._count is None:
            return Prompt(tokens=tokens, text=text)
        for _ in range(_COUNTS):
            counted = await self._count(text)
            if counted is None or counted == tokens:
                break
            if counted < tokens:
                text += _FILLER * (tokens - counted)
            else:
                kept = text.split(" ")
                least = len(words)
                text = " ".join(kept[: max(least, len(kept) - max(1, round((counted - tokens) * 0.9)))])
        return Prompt(tokens=tokens, text=text)


def corpus_text() -> str:
    """What :class:`PromptMaker` takes tokenised: some 6,000 tokens in most vocabularies."""
    source = random.Random("corpus")  # noqa: S311 - has to be repeatable
    return "\n".join(_sentence(source) for _ in range(_CORPUS_SENTENCES))


def _words(source: random.Random) -> Iterator[str]:
    while True:
        yield from _sentence(source).split(" ")


def _sentence(source: random.Random) -> str:
    parts = (source.choice(each) for each in (_WHO, _DID, _WHAT, _WHERE, _THEN))
    return f"{' '.join(parts).capitalize()}."


_NONCE_VOCABULARY = tuple(dict.fromkeys(" ".join((*_WHO, *_DID, *_WHAT, *_WHERE, *_THEN)).split(" ")))

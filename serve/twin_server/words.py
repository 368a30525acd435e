"""Readable text without end from a seed: sentences, now and then code and signs of several bytes."""

from __future__ import annotations

from array import array
from random import Random

from serve.twin_server.pieces import Ids, decode, encode

_THINGS = (
    "the scheduler", "a prefix", "the cache", "this branch", "the parser", "every request", "the second test",
    "the reader", "a longer prompt", "the index", "that queue", "the caller", "the log", "a checkpoint", "the worker",
    "the first page", "an older entry", "the budget", "the server", "a retry", "the config file", "the last turn",
)  # fmt: skip
_DOES = (
    "keeps", "returns", "waits for", "overwrites", "needs", "reads", "drops", "explains", "blocks", "follows",
    "replaces", "depends on", "never touches", "checks", "splits", "hides", "writes", "counts",
)  # fmt: skip
_LINKS = (
    "so", "because", "while", "and", "but", "as soon as", "even though", "unless", "before",
)  # fmt: skip
_OPENINGS = (
    "Looking at it again,", "In practice", "As far as I can see", "First", "Then", "After that", "In this case",
    "On a second look", "Most of the time", "Here", "To be sure,", "For now",
)  # fmt: skip
_ASIDES = (
    "(see § 4)", "– as expected –", "(≈ 12 %)", "„so gut wie immer“", "(日本語も同じ)", "→ ok", "(naïve, I know)", "🙂",
)  # fmt: skip
_CODE = (
    "```python\ndef {a}({b}: int) -> int:\n    return {b} * 2 if {b} > 0 else 0\n```",
    '```json\n{{"{a}": {{"{b}": true, "limit": 4096}}}}\n```',
    "```\n$ {a} --{b} 8\nok\n```",
)
_NAMES = ("total", "limit", "offset", "page", "merge", "flush", "depth", "pending", "split", "retry", "width", "scan")

_CODE_SHARE, _ASIDE_SHARE = 0.06, 0.08


class Writer:
    """The same seed writes the same text, however much of it is asked for."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)  # noqa: S311 - reproducible text, not a secret
        self._ids: Ids = array("I")

    def ids(self, tokens: int) -> Ids:
        """The first ``tokens``, which may end in the middle of a word."""
        while len(self._ids) < tokens:
            # No token reaches over the end of a paragraph, so one may be encoded after the other.
            self._ids.extend(encode(self._paragraph() + "\n\n"))
        return self._ids[:tokens]

    def text(self, tokens: int) -> str:
        """A text of exactly so many tokens that does not end in a space."""
        text = decode(self.ids(tokens))
        if text and text[-1].isspace():
            text = decode(self._ids[: tokens - 1]) + "."
        return text

    def phrase(self) -> str:
        return f"{self._random.choice(_THINGS)} {self._random.choice(_DOES)} {self._random.choice(_THINGS)}"

    def name(self) -> str:
        return self._random.choice(_NAMES)

    def _paragraph(self) -> str:
        if self._random.random() < _CODE_SHARE:
            a, b = self._random.sample(_NAMES, 2)
            return self._random.choice(_CODE).format(a=a, b=b)
        return " ".join(self._sentence() for _ in range(self._random.randint(2, 5)))

    def _sentence(self) -> str:
        parts = [self._random.choice(_OPENINGS), self.phrase()]
        if self._random.random() < 0.5:
            parts += [self._random.choice(_LINKS), self.phrase()]
        if self._random.random() < _ASIDE_SHARE:
            parts.append(self._random.choice(_ASIDES))
        return " ".join(parts) + "."

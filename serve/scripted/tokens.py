"""Token counts and the prefix cache of the scripted engine.

The rule is simple enough to be recomputed by hand in a test, exact (the same text always has the same count) and
local (a prefix of a text has the same tokens but for the last), which is what a prefix cache needs.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from enum import StrEnum

_TOKEN = re.compile(r"\s?\w{1,8}|\s?[^\w\s]{1,4}|\s+")
_VOCABULARY_SIZE = 1 << 17
_FIRST_PROBE_CHARS = 256


class Counting(StrEnum):
    """What a token is."""

    WORDS = "words"
    """At most eight letters or four signs with the space before them: ``"word " * n`` has ``n + 1`` tokens."""
    CHARS = "chars"
    """Four characters, rounded up. Costs nothing however long the text is, so benchmarks use it."""


def split_tokens(text: str) -> list[str]:
    """The words-tokens of a text; joined they are the text."""
    return _TOKEN.findall(text)


def count_tokens(text: str, counting: Counting = Counting.WORDS) -> int:
    if counting is Counting.CHARS:
        return -(-len(text) // 4)
    return len(_TOKEN.findall(text))


def token_ids(text: str) -> list[int]:
    """A stable number for each words-token."""
    return [zlib.crc32(token.encode()) % _VOCABULARY_SIZE for token in split_tokens(text)]


def common_prefix_chars(left: str, right: str) -> int:
    """Length of the common beginning, in logarithmically many comparisons of slices."""
    limit = min(len(left), len(right))
    same, step = 0, _FIRST_PROBE_CHARS
    while same < limit and left[same : same + step] == right[same : same + step]:
        same = min(limit, same + step)
        step *= 2
    low, high = same, min(limit, same + step)
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixCache:
    """Remembers the last prompts with their answers and tells how much of a new prompt was seen before."""

    def __init__(self, capacity: int, counting: Counting) -> None:
        self._capacity = capacity
        self._counting = counting
        self._texts: OrderedDict[str, None] = OrderedDict()

    def cached_tokens(self, prompt: str, prompt_tokens: int) -> int:
        """Tokens of ``prompt`` that need no prefill. At least one token is always computed, as in real engines."""
        shared = max((common_prefix_chars(prompt, text) for text in self._texts), default=0)
        if shared == len(prompt):
            return prompt_tokens - 1
        return max(0, count_tokens(prompt[:shared], self._counting) - 1)

    def remember(self, text: str, *, replaces: str | None = None) -> None:
        """``replaces`` is a beginning of ``text`` that need not be kept beside it."""
        if self._capacity <= 0:
            return
        if replaces is not None:
            self._texts.pop(replaces, None)
        self._texts[text] = None
        self._texts.move_to_end(text)
        while len(self._texts) > self._capacity:
            self._texts.popitem(last=False)

"""The numbers of a context's pages, as SGLang names them in its KV events.

Source: SGLang 0.5.23 ``mem_cache/utils.py`` (``get_hash_str``, ``hash_str_to_int64``): SHA-256 over the digest of the
page before and the page's token ids as 32-bit little-endian words; in KV events its first 64 bits, signed. A prompt
with ``cache_salt`` or ``extra_key`` has other names, and is not followed.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence


class PageNames:
    """Grows by tokens; ``pages`` are the numbers of the whole pages so far. One pass over the tokens, in as many parts
    as the caller likes."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._digest = b""
        self._rest = b""
        self.pages: array[int] = array("q")

    def extend(self, ids: Sequence[int]) -> None:
        """Raises :class:`OverflowError` for what is no token id."""
        words = array("I", ids)
        if sys.byteorder != "little":
            words.byteswap()
        unnamed = self._rest + words.tobytes()
        size, digest, pages = self._page_tokens * words.itemsize, self._digest, self.pages
        sha256, number = hashlib.sha256, int.from_bytes
        whole = len(unnamed) - len(unnamed) % size
        for start in range(0, whole, size):
            digest = sha256(digest + unnamed[start : start + size]).digest()
            pages.append(number(digest[:8], "big", signed=True))
        self._digest, self._rest = digest, unnamed[whole:]


def page_numbers(ids: Sequence[int], page_tokens: int) -> array[int]:
    """Of a whole context."""
    names = PageNames(page_tokens)
    names.extend(ids)
    return names.pages


def shared_pages(left: Sequence[int], right: Sequence[int]) -> int:
    """How many pages two contexts have in common: equal numbers mean equal beginnings, so the last equal one is looked
    for by halves."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low

"""The names of L3 pages, without the C++ that SGLang compiles for them at the first use.

A machine that only runs this engine needs no compiler. The digests are those of SGLang's ``hash_binding.cpp`` and of
its Rust tree: SHA-256 over the previous page's digest and the page's token ids as 32-bit little-endian words.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from sglang.srt.mem_cache.cpp_utils.native_hash import _native_hash_input
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    HookRegistry.register("sglang.srt.mem_cache.cpp_utils.native_hash.get_native_hash", page_hash, HookType.REPLACE)


def page_hash(token_ids: Any, prior_digest: bytes | None, page_size: int | None = None) -> str | list[str]:
    """One digest, or one a page. Raises :class:`NotImplementedError` for keys of more than one token a position."""
    tokens, length, width, _ = _native_hash_input(token_ids)
    if width != 1:
        raise NotImplementedError("keys of several tokens a position have no stand-in")
    words = array("I", tokens[:length]).tobytes()
    if page_size is None:
        return hashlib.sha256((prior_digest or b"") + words).hexdigest()
    digest = prior_digest or b""
    names = []
    for start in range(0, len(words), 4 * page_size):
        page = hashlib.sha256(digest + words[start : start + 4 * page_size])
        digest = page.digest()
        names.append(page.hexdigest())
    return names

"""Values that token counting and the hash chain share: a prompt's parts, a known prefix. No behaviour."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class KnownPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a prompt whose size the engine itself has reported."""

    messages: int
    """This prompt's first ``messages`` messages were part of the reported prompt."""
    prompt_tokens: int
    """What the engine reported for that prompt, its tools and framing included."""
    removed: tuple[bytes, ...] = ()
    """Messages at the end of the reported prompt that this prompt no longer has, as raw JSON."""


class PromptParts(msgspec.Struct, frozen=True, kw_only=True):
    """A chat prompt as raw JSON: what a counter needs of a request."""

    messages: Sequence[bytes]
    tools: bytes | None = None
    known: KnownPrefix | None = None
    digests: Sequence[bytes] | None = None
    """``digest_message`` of each message where the caller has them already; computed otherwise."""

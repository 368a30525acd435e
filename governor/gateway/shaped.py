"""What the engine shall see in place of what a client sent. A value."""

from __future__ import annotations

import msgspec

from governor.compress.heads import Covering
from governor.tokens.chain import Located
from governor.tokens.model import PromptParts
from governor.types import TokenCount
from governor.wire.request import GenerationRequest


class Shaped(msgspec.Struct, frozen=True, kw_only=True):
    """A request on its way. Untouched, it is the very request that came."""

    request: GenerationRequest
    prompt: PromptParts
    located: Located
    """Of this prompt, in the client's session."""
    count: TokenCount | None = None
    """Of this prompt, where the engine was asked."""
    estimate: TokenCount | None = None
    """Of this prompt, without the engine; ``None``: not counted yet."""
    head: Covering | None = None
    """What stands in place of the beginning."""
    line: int | None = None
    """Path of the client's own prompt, where a head stands in this one."""
    edits: tuple[str, ...] = ()
    """What was done, for the turn's row."""

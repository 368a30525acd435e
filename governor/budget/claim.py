"""What a turn asks of L1, and what the engine has. Values only.

Sizes are KV tokens of one context, as the engine counts them, and state slots. An engine without states has none of
the second kind; ``None`` is "nobody knows", and is never taken for zero.
"""

from __future__ import annotations

import msgspec

from governor.types import AgentName, TurnId


class Segment(msgspec.Struct, frozen=True):
    """A piece of a prompt that other turns may have in common. Equal ids mean equal tokens from the first one on."""

    id: bytes
    tokens: int


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn holds of L1 while it runs."""

    turn_id: TurnId
    agent: AgentName
    segments: tuple[Segment, ...] = ()
    """The whole prompt, from its first token. Pieces that another running turn holds, too, cost nothing more."""
    output_tokens: int = 0
    """What it may write before it asks again; all it has written so far is in ``segments``."""
    most_output_tokens: int | None = None
    """What it may write at most, however often it asks; ``None``: nobody knows."""
    margin_tokens: int = 0
    """What the prompt may hold beyond ``segments``, where its count is an estimate."""
    choices: int = 1
    """``n`` of the request: each writes its own output."""
    slots: int = 0
    """State slots that the engine takes for it, beside the tree's."""

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments) + self.margin_tokens

    @property
    def own_tokens(self) -> int:
        """Nobody shares these."""
        return self.margin_tokens + self.output_tokens * self.choices

    @property
    def tokens(self) -> int:
        """As if it ran alone."""
        return self.prompt_tokens + self.output_tokens * self.choices


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine says it can hold for running turns. ``None``: it does not say, and nothing is bounded."""

    tokens: int | None = None
    slots: int | None = None


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a claim does not fit now."""

    tokens: int = 0
    slots: int = 0
    never: bool = False
    """It is larger than everything there is."""

    def __bool__(self) -> bool:
        return self.tokens > 0 or self.slots > 0


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine reported when it was last asked."""

    asked_at: float
    """When the question was sent, seconds; what ended later is not in the answer."""
    running: int | None = None
    """Requests it decodes or prefills."""
    used_tokens: int | None = None
    """KV that running requests hold, without what could be evicted."""

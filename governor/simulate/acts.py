"""What a client in the simulator does, and what it hears: the seam between the agents' loops and whoever plays them."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from governor.policy.model import KeepAlive
from governor.simulate.result import CompactionEnd, TurnEnd
from governor.types import AgentName, PromptShape, TurnKind
from serve.twin.tiers_key import Key


class Sleep(msgspec.Struct, frozen=True):
    """Nothing until then, in seconds of virtual time."""

    until_s: float


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the endpoint."""

    agent: AgentName
    session: str
    kind: TurnKind
    shape: PromptShape
    attempt: int
    asked_s: float
    """When its first attempt was sent."""
    prompt: Key
    output: Key
    """What the model writes if nobody stops it; as long as it would."""
    cap: int | None
    accept_length: float | None
    patience_s: float | None
    """Silence after which the client hangs up."""
    streams: bool = True
    """``False``: it hears nothing before the whole answer is there, keep-alives included."""
    keepalive: KeepAlive = KeepAlive.COMMENT
    """The least that keeps its patience alive."""
    tool: str = ""
    """That the answer calls; empty: none, a person reads it."""
    fetches: str | None = None
    """The governor's own: it brings this context back into L1."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Told for the books: the conversation holds so much now."""

    before_tokens: int
    after_tokens: int
    threshold_tokens: int
    end: CompactionEnd


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended, as its client saw it."""

    end: TurnEnd
    prompt_tokens: int
    written: int
    retry_after_s: int | None = None


Act = Sleep | Request | Compacted
Loop = Generator[Act, Answer | None, None]
"""Is sent an :class:`Answer` for a :class:`Request`, ``None`` for anything else."""

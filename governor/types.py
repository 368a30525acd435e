"""Values every layer speaks in: turns, their kinds and ends, token usage. No I/O, no behaviour beyond arithmetic."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

AgentName = NewType("AgentName", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)


class TurnKind(StrEnum):
    """What a request is for; output caps are set per kind.

    The rules that recognise a kind are in ``governor.output.kinds``; they follow what real Hermes 0.19.0 and
    OpenClaw 2026.9.6 send.
    """

    TOOL_STEP = "tool_step"
    """The model may call a tool: tools are offered and not switched off."""
    FINAL = "final"
    """A plain answer: no tool can be called."""
    COMPACTION = "compaction"
    """The client summarises its own history, or saves its memory just before. Never refused for rate or concurrency:
    refusing loses data."""
    TITLE = "title"
    """A title for a conversation."""
    BACKGROUND = "background"
    """A review that no person waits for."""
    SUMMARY = "summary"
    """The governor has a history summarised, to make it shorter. Never refused, as ``compaction``."""


MAIN_KINDS = frozenset({TurnKind.TOOL_STEP, TurnKind.FINAL})
"""Kinds of the main line of a conversation; the others are side calls."""
NEVER_REFUSED = frozenset({TurnKind.COMPACTION, TurnKind.SUMMARY})
"""Kinds that neither a rate nor a limit of the queue or of concurrency applies to."""


class TurnState(StrEnum):
    """How a turn ended. Every turn has one row and ends in exactly one of these (``OPEN`` while it runs)."""

    OPEN = "open"
    OK = "ok"
    TRUNCATED = "truncated"
    """Ended well, at its output cap (``finish_reason: length``)."""
    CLIENT_ABORTED = "client_aborted"
    UPSTREAM_ERROR = "upstream_error"
    REFUSED = "refused"
    """The governor said no: bad input, over the window, rate, queue limit."""
    GOVERNOR_ERROR = "governor_error"
    INTERRUPTED = "interrupted"
    """Open when the governor was killed; set at the next start."""


class Verdict(StrEnum):
    """What was decided about a turn that wants the engine, or is in it."""

    QUEUED = "queued"
    GRANTED = "granted"
    PAUSE_ASKED = "pause_asked"
    """It is to stop where it can be continued."""
    PAUSED = "paused"
    """It has stopped and waits to go on."""
    RESUMED = "resumed"
    REFUSED = "refused"
    FREED = "freed"
    """Its place was taken back without its own word."""


class AgentClass(StrEnum):
    """Scheduling class of an agent, first to last."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BACKGROUND = "background"


class PromptShape(StrEnum):
    """How a prompt relates to what its session sent before."""

    CONTINUATION = "continuation"
    """Everything sent before, then more."""
    BRANCH = "branch"
    """A shared beginning, then something else."""
    REPEAT = "repeat"
    """Exactly what was sent before."""
    FRESH = "fresh"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as an engine reported them. ``None`` means unknown, which is not zero."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens served from a cache; part of ``prompt_tokens``."""
    cached_device_tokens: int | None = None
    cached_host_tokens: int | None = None
    cached_storage_tokens: int | None = None
    """Split of ``cached_tokens`` over L1, L2, L3, where the engine tells."""
    reasoning_tokens: int | None = None
    """Part of ``completion_tokens`` by the API's definition; engines have been seen to report more."""

    @property
    def new_tokens(self) -> int | None:
        """Prompt tokens that had to be prefilled; ``None`` while either part is unknown."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return max(0, self.prompt_tokens - self.cached_tokens)


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """A count of prompt tokens with its honesty: ``tokens`` is the best figure, the truth lies within ``margin``."""

    tokens: int
    margin: int = 0
    """The true count is at most ``tokens + margin`` and at least ``tokens - margin``. 0 means exact."""
    margin_below: int | None = None
    """How far the true count may lie under ``tokens``, where that is less than ``margin``; ``None``: as far."""
    source: str = "estimate"
    """``engine`` (its tokenizer was asked), ``tokenizer`` (the model's own, run here), ``usage`` (a reported
    figure plus what was added since) or ``estimate`` (characters)."""

    @property
    def upper(self) -> int:
        return self.tokens + self.margin

    @property
    def lower(self) -> int:
        return max(0, self.tokens - (self.margin if self.margin_below is None else self.margin_below))

    @property
    def exact(self) -> bool:
        return self.margin == 0

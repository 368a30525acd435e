"""What ``/governor/agents/NAME/context`` answers: what a prompt is made of, how it grew, where its prefix broke.

Shared with the command line and the dashboard; values only. ``None`` is unknown, which is not zero. Texts of clients
are fit to be shown (:mod:`governor.visible`), which does not make them markup.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ContextKind(StrEnum):
    """What a part of a prompt is, in the order in which reports show it."""

    SYSTEM = "system"
    SKILLS = "skills"
    """The part of the system prompt that lists skills."""
    TOOLS = "tools"
    """Schemas of the tools on offer."""
    USER = "user"
    ASSISTANT = "assistant"
    """Answers, without their reasoning and their calls."""
    REASONING = "reasoning"
    CALLS = "calls"
    RESULTS = "results"
    """What tools answered."""
    IMAGES = "images"
    CARRIERS = "carriers"
    """A client's snapshot of its own state, sent as a message."""
    SUMMARIES = "summaries"
    """What a client put in the place of a history that it compacted."""
    GOVERNOR = "governor"
    """Lines of the governor's in the place of what it left out."""
    FRAME = "frame"
    """Marks of the template around messages that are not counted with them."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A named part of a kind: one tool, one section of the system prompt."""

    name: str
    tokens: int
    items: int
    """Messages, schemas or skills."""


class KindShare(msgspec.Struct, frozen=True, kw_only=True):
    """All of one kind."""

    kind: ContextKind
    tokens: int
    items: int
    pieces: tuple[Piece, ...] = ()
    """The largest first, as many as were asked for."""
    more_pieces: int = 0


class LargeItem(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    index: int
    """Place in the prompt, from 0; the system prompt comes first."""
    role: str
    """``""`` where it cannot be read."""
    kind: ContextKind
    """Of its largest part."""
    tool: str = ""
    tokens: int
    hold: str
    """``free``, ``recent``, ``open``, ``verbatim``, or ``policy``: the policy keeps results of its tool."""
    begins: str
    """Its first words."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens by how firmly a compression holds them."""

    fixed: int
    """Tool schemas and the template's frame."""
    verbatim: int
    open: int
    """Results that the model has not seen."""
    policy: int
    recent: int
    free: int


class StageGain(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage of compression would free after those before it."""

    stage: str
    freed_tokens: int


class ContextReport(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt."""

    messages: int
    tool_schemas: int
    tokens: int
    """Of the whole prompt as the client sent it."""
    margin: int
    """The true figure is at most so much higher; 0: exact."""
    margin_below: int
    source: str
    """Where ``tokens`` comes from: ``reported`` by the engine, or as a count says."""
    exact_parts: bool
    """Parts are counted with the model's tokenizer; else they are estimates, scaled to the whole."""
    client_tokens: int
    engine_tokens: int | None
    """What the engine sees in its place, if the prompt was compressed."""
    window_tokens: int | None
    """Prompt and output that the agent may use."""
    trigger_tokens: int | None
    """Compression begins here."""
    target_tokens: int | None
    mode: str
    """Compression by the agent's policy: ``off``, ``observe`` or ``enforce``."""
    kinds: tuple[KindShare, ...]
    """In the order of :class:`ContextKind`; kinds without a part are left out. They add up to ``tokens``."""
    largest: tuple[LargeItem, ...]
    held: Held
    stages: tuple[StageGain, ...] | None
    """``None``: not a chat completion, or the window is not known."""

    @property
    def share(self) -> float | None:
        """Of the window."""
        return self.tokens / self.window_tokens if self.window_tokens else None


class PrefixBreak(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt left what its session had sent before."""

    cause: str
    message: int | None = None
    """``None``: before all messages."""
    byte: int | None = None
    detail: str = ""
    lost_tokens: int | None = None
    """Prefilled though they were not new."""

    @property
    def place(self) -> str:
        where = "tools" if self.message is None else f"message {self.message}"
        return where if self.byte is None else f"{where}, byte {self.byte:,}"


NOT_CACHED = "not_cached"
"""Cause of a loss without a break: the client sent a continuation that the engine no longer held."""
FRESH = "fresh"
"""Cause of a loss without a place: the prompt has nothing to do with those before it in its session."""
COMPRESSED = "compressed"
"""Cause of a loss without a break by the client: the governor made the prompt shorter."""


class TurnGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a session."""

    turn_id: str
    at: float | None
    """Unix time of its arrival."""
    prompt_tokens: int | None
    estimated: bool
    """``prompt_tokens`` is our count; the engine reported none."""
    growth_tokens: int | None
    """Since the turn before."""
    cached_tokens: int | None
    messages: int | None
    shared_messages: int | None
    broke: PrefixBreak | None = None


class CauseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All losses of one cause in the turns looked at."""

    cause: str
    count: int
    lost_tokens: int
    """Of those with a known loss."""
    unknown: int
    """Losses whose size the engine did not tell."""
    last_turn: str
    last_place: str
    """``""``: it has none."""
    last_detail: str = ""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The main line of a session: its turns but for titles, compactions and reviews."""

    turns: tuple[TurnGrowth, ...] = ()
    """Oldest first."""
    causes: tuple[CauseTotal, ...] = ()
    """The dearest first."""
    side_turns: int = 0
    """Turns that were left out."""
    window_tokens: int | None = None
    """As the newest turn had it."""

    @property
    def mean_growth_tokens(self) -> int | None:
        """Mean of the turns that grew."""
        grew = [turn.growth_tokens for turn in self.turns if turn.growth_tokens is not None and turn.growth_tokens > 0]
        return round(sum(grew) / len(grew)) if grew else None


class SessionNote(msgspec.Struct, frozen=True, kw_only=True):
    """One session of the agent, to choose from."""

    session: str
    messages: int
    held: bool
    """Its last prompt is in memory."""


class ContextPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything there is to say about the context of one agent."""

    agent: str
    session: str | None
    now: float
    """Unix time."""
    report: ContextReport | None
    why_no_report: str = ""
    growth: Growth | None = None
    """``None``: the turn log could not be read."""
    sessions: tuple[SessionNote, ...] = ()
    """The newest first."""

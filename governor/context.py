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
    lost_s: float | None = None
    """What that took, by the engine's speed at that time."""

    @property
    def place(self) -> str:
        where = "tools" if self.message is None else f"message {self.message}"
        return where if self.byte is None else f"{where}, byte {self.byte:,}"


class EngineLoss(StrEnum):
    """Why the engine did not serve what it had computed before, though the client sent it again as it was."""

    EVICTED = "evicted"
    """In no tier any more."""
    STATE_MISSING = "state_missing"
    """Its KV is held, and no state of a hybrid model to go on from."""
    L3_NOT_READ = "l3_not_read"
    """On the disk, and not read: too short a part to be asked for, or not there in time."""
    ENGINE_RESTARTED = "engine_restarted"
    FLUSHED = "flushed"
    """Somebody has emptied the cache."""
    OTHER_TOKENS = "other_tokens"
    """The same messages became other tokens: a template that leaves earlier reasoning out, or an answer that is not
    tokenized as it was generated."""
    NOT_USED = "not_used"
    """It was there by all that the engine told."""


NOT_CACHED = "not_cached"
"""Cause of a loss without a break: the client sent a continuation that the engine no longer held, and nothing tells
why."""
FIRST_PROMPT = "first_prompt"
"""No loss: the first prompt of its session that is known here, which has to be computed once."""
FRESH = "fresh"
"""Cause of a loss without a place: the prompt has nothing to do with those before it in its session."""
COMPRESSED = "compressed"
"""Cause of a loss without a break by the client: the governor made the prompt shorter."""
PLACELESS = frozenset({*EngineLoss, NOT_CACHED, FIRST_PROMPT, FRESH, COMPRESSED})
"""Causes that are no place in the client's prompt."""
_WORDS = {
    EngineLoss.EVICTED: "evicted",
    EngineLoss.STATE_MISSING: "KV held, but no state to go on from",
    EngineLoss.L3_NOT_READ: "on disk (L3), not read in time",
    EngineLoss.ENGINE_RESTARTED: "the engine was started anew",
    EngineLoss.FLUSHED: "the engine's cache was flushed",
    EngineLoss.OTHER_TOKENS: "the same messages as other tokens (template)",
    EngineLoss.NOT_USED: "held, and not used by the engine",
    NOT_CACHED: "no longer cached (evicted, or never stored)",
    FIRST_PROMPT: "first prompt of its session",
    COMPRESSED: "compressed by the governor",
    FRESH: "another beginning",
    "compacted": "compacted by the client",
    "volatile": "volatile bytes in the system prompt",
    "system_changed": "another system prompt",
    "tools_changed": "other tools",
    "tool_order": "the same tools in another order",
    "model_changed": "another model",
    "reasoning_dropped": "reasoning dropped by the client",
    "tool_name_dropped": "names dropped from tool results",
    "arguments_reserialised": "arguments of calls written anew",
    "reformatted": "the same meaning in other bytes",
    "carrier_moved": "the client's carrier moved",
    "edited": "edited by the client",
    "unknown": "cause unknown",
}


def words_of(cause: str) -> str:
    """A cause of a loss, for a person."""
    return _WORDS.get(cause, cause.replace("_", " "))


COMPRESSED_EDIT = "compressed:"
"""So begins the edit in such a turn's row."""


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
    losses: tuple[PrefixBreak, ...] = ()
    """For each cause, the dearest first."""

    @property
    def broke(self) -> PrefixBreak | None:
        """The dearest loss."""
        return self.losses[0] if self.losses else None


class CauseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All losses of one cause in the turns looked at."""

    cause: str
    count: int
    lost_tokens: int
    """Of those with a known loss."""
    unknown: int
    """Losses whose size the engine did not tell."""
    lost_s: float | None = None
    """Of those with a known price."""
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

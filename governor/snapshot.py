"""What ``/governor/state`` answers: the whole picture at one moment. Shared with the dashboard; values only."""

from __future__ import annotations

import msgspec

from governor.types import TurnKind, TurnState, Usage


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as the monitor last saw it."""

    name: str
    mode: str
    """``ready``, ``coming`` or ``down``."""
    detail: str = ""
    version: str = "unknown"
    models: tuple[str, ...] = ()
    window_tokens: int | None = None
    slots: int | None = None
    checked_at: float | None = None
    """Unix time of the last look."""


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has not ended."""

    turn_id: str
    agent: str
    route: str
    phase: str
    """``reading``, ``waiting``, ``prefill``, ``decode`` or ``paused``."""
    since: float
    """Unix time of its arrival."""
    kind: TurnKind | None = None
    waits_for: str | None = None
    prompt_tokens: int | None = None
    cap: int | None = None
    generated_bytes: int = 0


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn holds of L1."""

    turn_id: str
    agent: str
    since: float
    """Unix time of its grant, or of its last one after a pause."""
    booked_tokens: int
    """KV tokens, as if it ran alone: its prompt, what it has written, and what it may write before it asks again."""
    output_tokens: int
    """Of these, what it may write before it asks again."""
    leaving: bool = False
    """The turn is over here; the engine has not confirmed it."""


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that waits for the engine."""

    turn_id: str
    agent: str
    position: int
    """1 is looked at first."""
    since: float
    """Unix time since when it waits."""
    due: float
    """Unix time from which on it beats everything."""
    reason: str
    """Why it waits now."""
    needs_tokens: int | None = None
    """KV tokens, as if it ran alone; ``None``: unknown."""
    paused: bool = False
    """It has begun, and waits to go on."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds L1 and who waits for it. Sizes are KV tokens."""

    leases: tuple[LeaseView, ...] = ()
    """In the order of their grants."""
    waiting: tuple[WaitingView, ...] = ()
    """In the order in which they will be looked at."""
    booked_tokens: int = 0
    """Of all leases; a prefix that several turns share counts once."""
    foreign_tokens: int = 0
    """In use on the engine, and explained by no lease."""
    free_tokens: int | None = None
    capacity_tokens: int | None = None
    """``None``: the engine does not tell what it has."""


class LossView(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent's prompts lost of their prefixes for one cause (``docs/design/prefix-breaks.md``)."""

    cause: str
    """``first_prompt`` is no loss: what first prompts of sessions cost."""
    count: int
    tokens: int
    """Computed again."""
    seconds: float | None = None
    """Of those with a known price."""
    unmeasured: int = 0
    """Of ``count``, those whose size the engine did not tell."""


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """One agent since the governor started. Token sums count reported figures only; ``unreported`` counts turns
    without any."""

    name: str
    running: int = 0
    waiting: int = 0
    turns: dict[TurnState, int] = {}
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """``None`` until an engine has reported a figure, 0 included."""
    completion_tokens: int = 0
    unreported: int = 0
    last_usage: Usage | None = None
    last_ttft_ms: float | None = None
    last_seen: float | None = None
    policy_problem: str | None = None
    window_tokens: int | None = None
    """Prompt and output that it may use: the engine's window, or its ceiling where that is smaller."""
    trigger_tokens: int | None = None
    """Its prompts are made shorter from here on; ``None``: not by the governor."""
    held: bool = False
    """The owner has paused it: its turns wait."""
    held_reason: str | None = None
    """What its clients are told of that; ``None`` while it is not held."""
    held_since: float | None = None
    """Unix time."""
    losses: tuple[LossView, ...] = ()
    """Since the governor started, the dearest cause first."""


class ResidencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one line of an agent's conversation is, as of its last answer. Tokens; ``None`` means that nobody knows,
    which is not zero. ``l1 + l2 + l3 + unusable + missing + unknown`` is the context, unknown parts apart."""

    agent: str
    context: str
    """Names the line; the same from turn to turn."""
    session: str
    context_tokens: int
    """Its last prompt and answer."""
    usable_tokens: int | None = None
    """From where the engine would go on now: the sum of the three tiers."""
    l1_tokens: int | None = None
    l2_tokens: int | None = None
    l3_tokens: int | None = None
    """What each tier would serve."""
    unusable_tokens: int | None = None
    """Held in some tier, and of no use: KV behind the last state, or behind a hole."""
    missing_tokens: int | None = None
    """Nowhere: would be computed again."""
    unknown_tokens: int = 0
    """Of the context. Where it is not 0, the tiers are what is certain."""
    why_unknown: str | None = None
    shared_tokens: int | None = None
    """From its start on: what other agents' contexts begin with, too. Part of the figures above."""
    answered_at: float
    """Unix time of its last answer."""


class HolderView(msgspec.Struct, frozen=True, kw_only=True):
    """Whose KV is in a tier. Each token is counted for one holder."""

    agent: str | None
    """``None``: of several agents' contexts, shared."""
    tokens: int


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of the engine's cache, since the engine started or since it is listened to. ``None``: nobody knows."""

    tier: str
    """``L1``, ``L2`` or ``L3``."""
    capacity_tokens: int | None = None
    held_tokens: int | None = None
    is_part: bool = False
    """What is held is what was told of; more was there when listening began, or was missed since."""
    holders: tuple[HolderView, ...] = ()
    """Of what is held; what is left is of no conversation's last state that is known here."""
    held_states: int | None = None
    state_slots: int | None = None
    """States it has room for, those that running requests work in included."""
    written_tokens: int | None = None
    written_states: int | None = None
    served_tokens: int | None = None
    written_bytes: float | None = None
    held_bytes: float | None = None
    served_bytes: float | None = None
    served_per_written: float | None = None
    write_amplification: float | None = None
    """Tokens written into it for each token computed."""
    complaint: str | None = None
    """It takes and does not give."""


class PredictionView(msgspec.Struct, frozen=True, kw_only=True):
    """What the residency index said of prompts just before the engine was asked, against what the answers say."""

    turns: int = 0
    """Compared."""
    within_page: int = 0
    """Cached tokens predicted to within a page."""
    tier_turns: int = 0
    """Turns whose answers told the tiers."""
    tier_right: int = 0
    """Each tier within a page."""
    unknown: int = 0
    """Turns nothing was predicted of, or whose answers did not tell."""


class CanaryTierView(msgspec.Struct, frozen=True, kw_only=True):
    tier: str
    verdict: str
    """``SERVED``, ``EMPTY``, ``WRONG`` or ``SKIPPED``."""
    reason: str = ""


class CanaryView(msgspec.Struct, frozen=True, kw_only=True):
    """What ``governor canary`` has last proven of the engine's tiers."""

    at: float
    """Unix time of its end. The engine may have been started anew since."""
    passed: bool
    engine_version: str = "unknown"
    model: str = "unknown"
    tiers: tuple[CanaryTierView, ...] = ()
    problems: tuple[str, ...] = ()


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's cache and whose contexts are in it."""

    contexts: tuple[ResidencyView, ...] = ()
    """The last answered first."""
    tiers: tuple[TierView, ...] = ()
    predicted: PredictionView = PredictionView()
    predicted_lately: PredictionView = PredictionView()
    """Of the last 200 turns."""
    canary: CanaryView | None = None
    """``None``: nobody has asked."""
    unknown: str | None = None
    """Why nothing is known of it; ``None`` where something is."""


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    pending: int
    dropped: int
    last_error: str | None = None


class PrefillView(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the engine has computed prompts lately, with what ran beside them."""

    tokens_per_s: float
    low: float
    high: float
    """Most turns were between these two."""
    turns: int
    """That tell."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a dashboard draws. ``last_event_id`` is where to resume ``/governor/events``."""

    version: str
    started_at: float
    now: float
    last_event_id: int
    engine: EngineView
    agents: tuple[AgentView, ...] = ()
    turns: tuple[TurnView, ...] = ()
    queue: QueueView = QueueView()
    cache: CacheView = CacheView()
    prefill: PrefillView | None = None
    """``None``: no turn has told."""
    store: StoreView
    alerts: tuple[str, ...] = ()

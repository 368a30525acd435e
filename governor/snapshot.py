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
    """``reading``, ``waiting``, ``prefill`` or ``decode``."""
    since: float
    """Unix time of its arrival."""
    kind: TurnKind | None = None
    waits_for: str | None = None
    prompt_tokens: int | None = None
    cap: int | None = None
    generated_bytes: int = 0


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


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    pending: int
    dropped: int
    last_error: str | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a dashboard draws. ``last_event_id`` is where to resume ``/governor/events``."""

    version: str
    started_at: float
    now: float
    last_event_id: int
    engine: EngineView
    agents: tuple[AgentView, ...] = ()
    turns: tuple[TurnView, ...] = ()
    store: StoreView
    alerts: tuple[str, ...] = ()

"""What happened, counted for Prometheus as it is told to the event log. Label values come from our own tables, and
names of agents from the book; anything else is ``other``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from governor import events
from governor.compress.client_model import ClientOutcome
from governor.compress.verify import Outcome
from governor.context import COMPRESSED, FIRST_PROMPT, FRESH, NOT_CACHED, EngineLoss
from governor.store.archive_model import CompactedBy
from governor.tokens.breaks import BreakCause
from governor.types import Verdict

OTHER: Final = "other"
CAUSES: Final = frozenset({*BreakCause, *EngineLoss, COMPRESSED, FRESH, FIRST_PROMPT, NOT_CACHED})
OUTCOMES: Final = {CompactedBy.GOVERNOR: (*Outcome, "would"), CompactedBy.CLIENT: tuple(ClientOutcome)}
"""Of compactions, by whose they are; ``would``: the policy only observes."""


class EventMetrics:
    """Listens to an event log (:meth:`governor.events.EventLog.listen`)."""

    def __init__(self, registry: CollectorRegistry, label: Callable[[str], str]) -> None:
        """``label``: an agent's name as it may stand in a label."""
        self._label = label
        self._compactions = Counter(
            "governor_compactions",
            "Tries to make a conversation shorter, by whose and by what came of them.",
            ["by", "outcome"],
            registry=registry,
        )
        for by, outcomes in OUTCOMES.items():
            for outcome in outcomes:
                self._compactions.labels(by.value, str(outcome))
        self._freed = Counter(
            "governor_compaction_freed_tokens",
            "Tokens by which compactions that were accepted made prompts shorter.",
            ["agent", "by"],
            registry=registry,
        )
        self._losses = Counter(
            "governor_prefix_losses",
            "Times that a turn computed again what had been computed; first_prompt is no loss.",
            ["agent", "cause"],
            registry=registry,
        )
        self._lost_tokens = Counter(
            "governor_prefix_lost_tokens",
            "Prompt tokens computed again; those of first_prompt were computed once.",
            ["agent", "cause"],
            registry=registry,
        )
        self._lost_seconds = Counter(
            "governor_prefix_lost_seconds",
            "What computing them took, by the engine's speed at that time.",
            ["agent", "cause"],
            registry=registry,
        )
        self._pauses = Counter(
            "governor_pauses", "Running answers stopped to make room for others.", ["agent"], registry=registry
        )
        self._paused_seconds = Counter(
            "governor_paused_seconds", "How long they waited to go on.", ["agent"], registry=registry
        )
        self._decisions = Counter(
            "governor_decisions", "The scheduler's decisions about turns.", ["verdict"], registry=registry
        )
        for verdict in Verdict:
            self._decisions.labels(verdict.value)

    def __call__(self, event: events.AnyEvent) -> None:
        match event:
            case events.PrefixLost():
                self._on_lost(event)
            case events.Compacted():
                self._on_compacted(event)
            case events.TurnPaused():
                self._pauses.labels(self._label(event.agent)).inc()
            case events.TurnResumed():
                self._paused_seconds.labels(self._label(event.agent)).inc(event.paused_ms / 1000)
            case events.TurnDecided():
                self._decisions.labels(Verdict(event.verdict).value).inc()

    def _on_lost(self, event: events.PrefixLost) -> None:
        labels = self._label(event.agent), event.cause if event.cause in CAUSES else OTHER
        self._losses.labels(*labels).inc()
        if event.tokens is not None:
            self._lost_tokens.labels(*labels).inc(event.tokens)
        if event.seconds is not None:
            self._lost_seconds.labels(*labels).inc(event.seconds)

    def _on_compacted(self, event: events.Compacted) -> None:
        by = CompactedBy(event.by)
        self._compactions.labels(by.value, event.outcome if event.outcome in OUTCOMES[by] else OTHER).inc()
        if event.outcome == Outcome.ACCEPTED and event.before_tokens is not None and event.after_tokens is not None:
            freed = max(0, event.before_tokens - event.after_tokens)
            self._freed.labels(self._label(event.agent), by.value).inc(freed)
